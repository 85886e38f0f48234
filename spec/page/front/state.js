// Draws one state: pool, tables, pins and jobs, ranks, store; what differs from the state before
// has a bar and the word "changed", so that colour is not needed to see it.
cowtail.el = function (tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") element.className = value; else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};

cowtail.same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

cowtail.drawState = function (data, now, before, phases) {
  const el = cowtail.el, boxes = [];
  const names = data.scope.requests.map((request) => request.name);
  const differs = (...columns) => before !== null && columns.some((c) => !cowtail.same(now[c], before[c]));
  const key = (k) => `${k.prefix}@group${k.group}`;
  const value = (v) => {
    if (v === null) return "none";
    if (Array.isArray(v)) return v.length ? `[${v.map(value).join(", ")}]` : "–";
    if (typeof v === "object") return Object.entries(v).map(([n, x]) => `${n}=${value(x)}`).join(" ");
    return String(v);
  };
  const item = (title, changed, rows, mark) => {
    const box = el("div", { class: `item${changed ? " changed" : ""}${mark ? " " + mark : ""}` }, el("strong", {}, title));
    if (changed) box.append(el("em", {}, "changed"));
    for (const row of rows) if (row) box.append(el("div", {}, row));
    return box;
  };
  const section = (title, changed, note, items) => {
    const head = el("h3", {}, title);
    if (note) head.append(el("small", {}, note));
    if (changed && !items.some((i) => i.classList.contains("changed"))) head.append(el("em", { class: "flag" }, "changed"));
    boxes.push(el("section", {}, head, el("div", { class: "items" }, ...items)));
  };

  const refs = now["pool.ref_counts"], blocks = [];
  for (let b = 1; b < refs.length; b++) {
    const changed = differs(`pool.keys.${b}`, `memory.${b}`) || (before !== null && before["pool.ref_counts"][b] !== refs[b]) ||
      (phases.before && phases.before[b - 1] !== phases.now[b - 1]);
    const was = phases.before && phases.before[b - 1] !== phases.now[b - 1] ? `${phases.before[b - 1]} → ` : "";
    const bytes = now[`memory.${b}`], keys = now[`pool.keys.${b}`];
    blocks.push(item(`block ${b}`, changed, [
      was + phases.now[b - 1], `${refs[b]} reference${refs[b] === 1 ? "" : "s"}`,
      keys.length ? `keys ${keys.map(key).join(", ")}` : "",
      bytes.some((slot) => slot) ? `bytes ${bytes.map((slot) => slot || "·").join(" | ")}` : "",
    ], refs[b] ? "held" : "unheld"));
  }
  section("Pool", differs("pool.free"), `free list: ${now["pool.free"].join(" ") || "empty"}`, blocks);

  section("Requests and their tables", false, "", names.map((name, i) => {
    const request = now[`requests.${i}`], rows = [`${request.status}, ${request.computed} computed, ${request.outputs} processed`];
    request.tables.forEach((table, g) => {
      if (!table.blocks.length) return;
      const marker = table.marker ? `, tail in block ${table.marker.block} at ${table.marker.boundary}` : "";
      rows.push(`group ${g} ${data.scope.groups[g].kind}: ${table.blocks.map((b) => b || "null").join(" ")}${marker}`);
    });
    const tracker = now[`trackers.${i}`];
    if (tracker) rows.push(`connector: ${value(tracker)}`);
    return item(`${name} “${data.scope.requests[i].prompt}”`, differs(`requests.${i}`, `trackers.${i}`), rows);
  }));

  const old = (column) => (before === null ? null : before[column]);
  const listed = (column, title, tell) => now[column].map((entry) => {
    const changed = old(column) !== null && !old(column).some((o) => cowtail.same(o, entry));
    return item(title(entry), changed, tell(entry));
  });
  section("Pins", differs("pins"), now.pins.length ? "" : "none", listed("pins", (p) => `job ${p.job} of ${names[p.request]}`,
    (p) => [`pins blocks ${p.blocks.join(" ")}`, `owed by rank ${p.ranks_owed.join(", ")}`]));
  section("Steps in flight", differs("steps"), now.steps.length ? "" : "none", listed("steps", (s) => (s.executed ? "has run" : "waits to run"),
    (s) => [...s.chunks.map((c) => `${names[c.request]} [${c.start}, ${c.end})${c.stale ? " stale" : ""}`),
      ...s.copies.map((c) => `copies block ${c.source} to ${c.destination}`), ...s.jobs.map((j) => `ships job ${j.job}`)]));
  const pass = now.open_pass;
  section("Pass", differs("open_pass"), pass ? "open" : "none open", pass ? [item("open pass", differs("open_pass"),
    Object.entries(pass).filter(([, v]) => v.length).map(([n, v]) => `${n}: ${value(v)}`))] : []);
  const ranks = [];
  for (let r = 0; now[`ranks.${r}`]; r++) {
    const rank = now[`ranks.${r}`];
    ranks.push(item(`rank ${r}`, differs(`ranks.${r}`), [
      `queue: ${rank.queue.map((j) => `job ${j.job}${j.live ? "" : " (retired)"}`).join(", ") || "empty"}`,
      rank.outbox.length ? `to report: job ${rank.outbox.join(", ")}` : "", `saved ${rank.saved.join(" ")} tokens`,
      ...["closing", "loads", "loaded", "sends", "skipping"].map((n) => (rank[n].length ? `${n}: ${value(rank[n])}` : "")),
    ]));
  }
  section("Ranks", false, "", ranks);
  section("Store", differs("store"), now.store.length ? "" : "empty", listed("store", (e) => `rank ${e.rank}: ${key(e)}`,
    (e) => [e.content.map((slot) => slot || "nothing").join(" | ")]));
  const shown = /^(pool|requests|trackers|ranks|memory|pins|steps|open_pass|store)(\.|$)/;
  const rest = data.columns.filter((c) => !shown.test(c) && (differs(c) ||
    (c !== "next_job" && now[c] !== "" && !(Array.isArray(now[c]) && !now[c].length))));
  section("Everything else", false, "", rest.map((c) => item(c.replaceAll("_", " "), differs(c), [value(now[c])])));
  return boxes;
};
