// The page: where one is (a path), what is chosen, and the address that says both.
cowtail.App = class {
  constructor(payload) {
    this.main = new cowtail.Dataset(payload.main);
    this.traces = payload.traces.map((trace) => new cowtail.Dataset(trace));
    this.pictures = payload.main.pictures;
    this.view = this.pictures[payload.view] ? payload.view : Object.keys(this.pictures).find((v) => this.pictures[v]);
    this.trace = -1; // which trace is followed; -1: a path of the graph
    this.path = []; // action indices
    this.at = 0; // place on the path
    this.chosen = null;
    this.limit = 60;
    this.byId = (id) => document.getElementById(id);
    this.fill();
    this.listen();
    this.readAddress();
    window.addEventListener("hashchange", () => this.readAddress());
    document.documentElement.dataset.ready = "yes";
  }

  get data() { return this.trace < 0 ? this.main : this.traces[this.trace]; }

  fill() {
    const el = cowtail.el, main = this.main;
    this.byId("title").textContent = main.scope.name;
    this.byId("counts").textContent = `${main.size.toLocaleString("en")} states, ` +
      `${main.targets.length.toLocaleString("en")} transitions, depth ${main.depth}`;
    for (const [name, picture] of Object.entries(this.pictures)) {
      if (!picture) continue;
      const button = el("button", { type: "button", "data-view": name }, name);
      button.addEventListener("click", () => { this.view = name; this.chosen = null; this.go(); });
      this.byId("views").append(button);
    }
    this.byId("source").append(el("option", { value: "-1" }, "paths of the graph"),
      ...this.traces.map((trace, i) => el("option", { value: i }, trace.title)));
    const option = (value, text) => el("option", { value }, text || value);
    this.byId("action").append(...[...new Set(main.names)].sort().map((name) => option(name)));
    const events = [...new Set(main.events.flat())].sort();
    const broken = (p) => option(`p:${p.identifier}`, `${p.identifier} ${p.name}: ` +
      (p.states.length ? `fails in ${p.states.length}` : "holds in all"));
    const happen = el("optgroup", { label: "what happens on a step" }, ...events.map((e) => option(`e:${e}`, e)));
    this.byId("property").append(happen,
      el("optgroup", { label: "invariants: states that violate" }, ...main.violated.map(broken)));
  }

  listen() {
    const on = (id, what, act) => this.byId(id).addEventListener(what, act);
    on("source", "change", (event) => { this.trace = Number(event.target.value); this.path = []; this.at = 0; this.go(); });
    on("first", "click", () => this.move(0));
    on("back", "click", () => this.move(this.at - 1));
    on("forward", "click", () => this.move(this.at + 1));
    on("last", "click", () => this.move(this.length));
    on("theme", "click", () => this.changeTheme());
    on("help", "click", () => this.showKeys());
    on("clear", "click", () => this.clear());
    on("copy", "click", () => this.copy());
    for (const id of ["search", "action", "property"]) on(id, "input", () => { this.limit = 60; this.list(); this.mark(); });
    document.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") { this.clear(); event.target.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const views = Object.keys(this.pictures).filter((name) => this.pictures[name]);
    const acts = {
      ArrowLeft: () => this.move(this.at - 1),
      ArrowRight: () => this.move(this.at + 1),
      Home: () => this.move(0),
      End: () => this.move(this.length),
      "/": () => this.byId("search").focus(),
      v: () => { this.view = views[(views.indexOf(this.view) + 1) % views.length]; this.chosen = null; this.go(); },
      t: () => this.changeTheme(),
      "?": () => this.showKeys(),
    };
    if (acts[event.key]) acts[event.key]();
    else if (/^[0-9]$/.test(event.key)) this.take(Number(event.key));
    else return;
    event.preventDefault();
  }

  showKeys() {
    const keys = this.byId("keys");
    keys.hidden = !keys.hidden;
    this.byId("help").setAttribute("aria-expanded", String(!keys.hidden));
  }

  changeTheme() {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  }

  clear() {
    for (const id of ["search", "action", "property"]) this.byId(id).value = "";
    this.chosen = null;
    this.list();
    this.mark();
  }

  async copy() {
    const button = this.byId("copy");
    try { await navigator.clipboard.writeText(location.href); button.textContent = "copied"; }
    catch { button.textContent = "not allowed here: copy from the address bar"; }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  }

  // #0.2.1 is a path, the last state shown; #0.2.1@2 the state after two of its actions;
  // #trace1@5 the state after five actions of the first trace. ?job after either is the view.
  readAddress() {
    const text = decodeURIComponent(location.hash.slice(1));
    const found = /^(trace(\d+)|[\d.]*)(@(\d+))?(\?(\w+))?$/.exec(text);
    const problem = (why) => { this.trace = -1; this.path = []; this.at = 0; this.show(); this.byId("happened").textContent = why; };
    if (!found) return problem(`address “${text}”: not a path of action indices such as 0.2.1; showing the first state`);
    if (found[6] && this.pictures[found[6]]) this.view = found[6];
    if (found[2]) {
      if (!this.traces[found[2] - 1]) return problem(`address “${text}”: this page has ${this.traces.length} traces; load it with cowtail draw --trace`);
      this.trace = found[2] - 1;
      this.path = [];
    } else {
      const path = found[1] ? found[1].split(".").map(Number) : [];
      if (!this.main.walk(path)) return problem(`address “${text}”: an action on it is not enabled; is it of another scope or revision?`);
      this.trace = -1;
      this.path = path;
    }
    this.at = Math.min(found[4] === undefined ? (found[2] ? 0 : this.length) : Number(found[4]), this.length);
    this.show();
  }

  go() {
    const where = this.trace < 0 ? this.path.join(".") : `trace${this.trace + 1}`;
    const place = this.trace < 0 && this.at === this.path.length ? "" : `@${this.at}`;
    const hash = `#${where}${place}?${this.view}`;
    if (location.hash === hash) this.show(); else location.hash = hash;
  }

  get length() { return this.trace < 0 ? this.path.length : this.data.size - 1; }

  get states() { return this.trace < 0 ? this.main.walk(this.path) : [...Array(this.data.size).keys()]; }

  move(to) {
    if (to < 0 || to > this.length) return;
    this.at = to;
    this.go();
  }

  take(choice) {
    if (this.trace >= 0) { if (choice === 0) this.move(this.at + 1); return; }
    const state = this.states[this.at];
    if (this.main.edges(state)[choice] === undefined) return;
    this.path = [...this.path.slice(0, this.at), choice];
    this.at = this.path.length;
    this.go();
  }

  open(state) {
    this.trace = -1;
    this.path = this.main.address(state);
    this.at = this.path.length;
    this.go();
  }

  // What the step into a place of the path is: action, events, remarks, whether names change.
  step(place) {
    if (this.trace >= 0) return this.data.steps[place];
    const edge = this.main.edges(this.states[place - 1])[this.path[place - 1]];
    const renamed = this.main.renamed.has(edge);
    return {
      action: this.main.actions[this.main.action_of[edge]],
      events: this.main.events[this.main.events_of[edge]],
      remarks: [], renamed,
    };
  }

  show() {
    const states = this.states, number = states[this.at], data = this.data;
    this.byId("source").value = String(this.trace);
    const before = this.at > 0 ? states[this.at - 1] : null;
    const step = this.at > 0 ? this.step(this.at) : null;
    this.byId("place").textContent = `step ${this.at} of ${this.length}` + (this.trace < 0 ? `, state ${number}` : "");
    this.byId("first").disabled = this.byId("back").disabled = this.at === 0;
    this.byId("last").disabled = this.byId("forward").disabled = this.at === this.length;
    const address = this.byId("address");
    address.href = location.hash || "#";
    address.textContent = this.trace < 0 ? `#${this.path.slice(0, this.at).join(".")}` : `#trace${this.trace + 1}@${this.at}`;
    const renamed = step && step.renamed;
    this.byId("happened").textContent = step
      ? `${step.action}${step.events.length ? ": " + step.events.join("; ") : ""}` +
        (renamed ? ". This state stands for all that differ from it in the names of blocks, ranks, jobs or equal requests only; names differ from those of the state before." : "")
      : data.note || "the initial state";
    const failing = this.trace < 0 ? this.main.violated.filter((p) => p.states.includes(number)).map((p) => `${p.identifier} ${p.name}: ${p.sentence}`) : (step ? step.remarks : []);
    this.byId("remarks").replaceChildren(...failing.map((remark) => cowtail.el("li", {}, `✗ ${remark}`)));
    this.showNext(number);
    const phases = { now: data.phases("block", number), before: before === null || renamed ? null : data.phases("block", before) };
    this.byId("state").replaceChildren(...cowtail.drawState(data, data.state(number), before === null || renamed ? null : data.state(before), phases));
    this.showPath();
    this.drawView();
    this.list();
    this.mark();
  }

  showNext(number) {
    const el = cowtail.el, next = this.byId("next");
    const button = (index, text, told, act) => {
      const b = el("button", { type: "button", title: told }, el("kbd", {}, String(index)), " ", text);
      b.addEventListener("click", act);
      return b;
    };
    if (this.trace >= 0) {
      next.replaceChildren(...(this.at < this.length ? [button(0, this.data.steps[this.at + 1].action, "the trace's next action", () => this.move(this.at + 1))] : []));
      return;
    }
    const edges = this.main.edges(number);
    next.replaceChildren(...(edges.length ? edges.map((edge, i) => button(i, this.main.actions[this.main.action_of[edge]],
      this.main.events[this.main.events_of[edge]].join("; ") || "no event", () => this.take(i))) : ["at rest: nothing is enabled"]));
  }

  showPath() {
    const steps = [];
    for (let place = 0; place <= this.length; place++) {
      const step = place ? this.step(place) : { action: "initial state", remarks: [] };
      const button = cowtail.el("button", { type: "button", class: "link" }, step.action + (step.remarks.length ? " ✗" : ""));
      if (place === this.at) button.setAttribute("aria-current", "step");
      button.addEventListener("click", () => this.move(place));
      steps.push(cowtail.el("li", {}, button));
    }
    this.byId("path").replaceChildren(...steps);
  }

  drawView() {
    for (const button of this.byId("views").children) button.setAttribute("aria-pressed", String(button.dataset.view === this.view));
    if (this.drawn === this.view) return;
    this.drawn = this.view;
    const picture = this.pictures[this.view];
    this.diagram = new cowtail.Diagram(picture, (what) => {
      const same = this.chosen && this.chosen.kind === what.kind && this.chosen.name === what.name && this.chosen.arrow === what.arrow;
      this.chosen = same ? null : what;
      this.limit = 60;
      this.list();
      this.mark();
    });
    this.byId("diagram").replaceChildren(this.diagram.element);
    this.byId("legend").replaceChildren(...picture.kinds.map((kind, i) => cowtail.el("span", {},
      cowtail.el("i", { class: `swatch kind${i % 10}` }), kind)), cowtail.el("span", {}, "▣ dashed outline: the state shown is here"));
  }

  mark() {
    const number = this.states[this.at];
    this.diagram.mark(this.chosen, this.data.phases(this.view, number), this.byId("action").value);
  }

  // The states that fit what is chosen, filtered and searched for, and the edge that shows it.
  matching() {
    const main = this.main, view = main.views[this.view], action = this.byId("action").value;
    const property = this.byId("property").value, text = this.byId("search").value.trim().toLowerCase();
    const chosen = this.chosen;
    const source = chosen && main.tuplesWith(this.view, chosen.kind === "node" ? chosen.name : chosen.arrow.source);
    const target = chosen && chosen.kind === "arrow" ? main.tuplesWith(this.view, chosen.arrow.target) : null;
    const failing = property.startsWith("p:") ? new Set(main.violated.find((p) => p.identifier === property.slice(2)).states) : null;
    const event = property.startsWith("e:") ? property.slice(2) : "";
    const names = main.names, wantsEdge = action || event || target;
    const numbers = this.searched(text), found = [];
    for (const n of numbers) {
      if (source && !source.has(view.of[n])) continue;
      if (failing && !failing.has(n)) continue;
      if (wantsEdge && !main.edges(n).some((e) => (!action || names[main.action_of[e]] === action) &&
        (!event || main.events[main.events_of[e]].includes(event)) &&
        (!target || (chosen.arrow.actions.includes(names[main.action_of[e]]) && target.has(view.of[main.targets[e]]) &&
          (main.renamed.has(e) || this.itemMoves(view, n, main.targets[e], chosen.arrow)))))) continue;
      found.push(n);
    }
    return found;
  }

  itemMoves(view, from, to, arrow) {
    const before = view.tuples[view.of[from]], after = view.tuples[view.of[to]];
    const was = view.phases.indexOf(arrow.source), becomes = view.phases.indexOf(arrow.target);
    return before.some((phase, i) => phase === was && after[i] === becomes);
  }

  // States whose number or address is the text, or some value of which has it: columns are
  // searched once, not states.
  searched(text) {
    const main = this.main, all = [...Array(main.size).keys()];
    if (!text) return all;
    if (/^#?[\d.]+$/.test(text)) {
      const walked = text.includes(".") || text.startsWith("#") ? main.walk(text.replace("#", "").split(".").filter(Boolean).map(Number)) : null;
      if (walked) return [walked[walked.length - 1]];
      return Number(text) < main.size && !text.includes(".") ? [Number(text)] : [];
    }
    const hits = main.tables.map((table, c) => table.map((value) => `${main.columns[c]}=${JSON.stringify(value)}`.toLowerCase().replaceAll('"', "").includes(text)));
    const phases = Object.values(main.views).map((view) => ({ view, hit: view.tuples.map((tuple) => tuple.some((p) => view.phases[p].includes(text))) }));
    const counts = new Int32Array(main.size), values = new Int32Array(main.columns.length);
    // A state has as many hits as its parent, but for the columns that differ.
    const rowOf = (n, c) => { for (let at = n; ; at = main.parents[at]) { for (let i = main.starts[at]; i < main.starts[at + 1]; i += 2) if (main.changes[i] === c) return main.changes[i + 1]; } };
    for (let n = 0; n < main.size; n++) {
      counts[n] = n ? counts[main.parents[n]] : 0;
      for (let i = main.starts[n]; i < main.starts[n + 1]; i += 2) {
        const c = main.changes[i];
        counts[n] += hits[c][main.changes[i + 1]] - (n ? hits[c][rowOf(main.parents[n], c)] : 0);
      }
    }
    return all.filter((n) => counts[n] > 0 || phases.some(({ view, hit }) => hit[view.of[n]]));
  }

  list() {
    const el = cowtail.el, found = this.matching(), chosen = this.chosen;
    const where = !chosen ? "" : chosen.kind === "node" ? ` with a ${this.view} that is “${chosen.name}”`
      : ` from which a step leads “${chosen.arrow.source}” → “${chosen.arrow.target}”`;
    this.byId("found").textContent = `${found.length.toLocaleString("en")} states${where}`;
    const entries = found.slice(0, this.limit).map((n) => {
      const last = n ? this.main.actions[this.main.action_of[this.main.edges(this.main.parents[n]).find((e) => this.main.targets[e] === n)]] : "initial";
      const button = el("button", { type: "button", class: "link" }, `state ${n}`);
      button.addEventListener("click", () => this.open(n));
      return el("li", {}, button, ` ${last} · ${this.main.address(n).length} steps`);
    });
    if (found.length > this.limit) {
      const more = el("button", { type: "button" }, `${Math.min(200, found.length - this.limit)} more`);
      more.addEventListener("click", () => { this.limit += 200; this.list(); });
      entries.push(el("li", { class: "more" }, more));
    }
    this.byId("states").replaceChildren(...entries);
  }
};

(async () => {
  try {
    const element = document.getElementById("data");
    const payload = await cowtail.unpack(element.textContent);
    element.remove();
    cowtail.app = new cowtail.App(payload);
  } catch (error) {
    document.getElementById("title").textContent = `this page cannot be shown: ${error.message}; open it in a browser of 2023 or later`;
  }
})();
