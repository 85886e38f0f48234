// The projection as an SVG whose nodes and arrows can be chosen by mouse and by keyboard.
cowtail.svg = function (tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

cowtail.Diagram = class {
  constructor(picture, onChoose) {
    const svg = cowtail.svg;
    this.parts = [];
    const width = picture.width + 40;
    this.element = svg("svg", {
      viewBox: `-30 -6 ${width} ${picture.height + 12}`, width, role: "group", "aria-label": picture.title,
    });
    const arrows = [...picture.arrows].sort((a, b) => a.main - b.main);
    for (const arrow of arrows) {
      const told = `${arrow.source} → ${arrow.target}: ${arrow.actions.join(", ")} (${arrow.count.toLocaleString("en")} steps)`;
      this.add({ kind: "arrow", arrow }, told, onChoose, `arrow${arrow.main ? " main" : ""}`,
        svg("path", { d: arrow.paths[0], class: "hit" }),
        svg("path", { d: arrow.paths[0], class: "line" }),
        svg("path", { d: arrow.paths[1], class: "head" }),
        this.rectangle(arrow.label, 4, "paper"), ...this.lines(arrow.lines, arrow.label, 12));
    }
    for (const node of picture.nodes) {
      const parts = [this.rectangle(node.box, 9, "shape"), ...this.lines(node.lines, node.box, 14)];
      if (node.initial) {
        const y = node.box[1] + node.box[3] / 2;
        parts.push(svg("circle", { cx: node.box[0] - 18, cy: y, r: 5.5, class: "start" }),
          svg("path", { d: `M${node.box[0] - 14} ${y}H${node.box[0] - 2}`, class: "start" }));
      }
      this.add({ kind: "node", name: node.name }, node.name, onChoose,
        `node kind${node.kind % 10}${node.initial ? " initial" : ""}`, ...parts);
    }
  }

  add(what, told, onChoose, classes, ...children) {
    const group = cowtail.svg("g", { class: classes, tabindex: 0, role: "button", "aria-label": told, "aria-pressed": "false" },
      cowtail.svg("title", {}, told), ...children);
    group.addEventListener("click", () => onChoose(what));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); onChoose(what); }
    });
    this.parts.push({ what, group });
    this.element.append(group);
  }

  rectangle(box, rx, name) {
    return cowtail.svg("rect", { x: box[0], y: box[1], width: box[2], height: box[3], rx, class: name });
  }

  lines(lines, box, size) {
    const first = box[1] + box[3] / 2 - ((lines.length - 1) * size * 1.25) / 2 + size * 0.35;
    return lines.map((line, i) => cowtail.svg("text",
      { x: box[0] + box[2] / 2, y: first + i * size * 1.25, "font-size": size }, line));
  }

  // Mark what is chosen, where the items of the state are, and what a filtered action leads along.
  mark(chosen, here, action) {
    for (const { what, group } of this.parts) {
      const same = chosen && chosen.kind === what.kind &&
        (what.kind === "node" ? chosen.name === what.name : chosen.arrow === what.arrow);
      group.classList.toggle("chosen", Boolean(same));
      group.setAttribute("aria-pressed", String(Boolean(same)));
      if (what.kind === "node") group.classList.toggle("here", here.includes(what.name));
      else group.classList.toggle("dim", Boolean(action) && !what.arrow.actions.includes(action));
    }
  }
};
