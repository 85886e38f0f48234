// Reads the page's data, and answers for states: decoded when asked for, by the path to them.
var cowtail = {};

cowtail.unpack = async function (text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

// A scope's states, or a trace's. Numbers go into typed arrays, at four bytes each.
cowtail.Dataset = class {
  constructor(data) {
    Object.assign(this, data);
    for (const name of ["parents", "starts", "changes", "first_edges", "targets", "action_of", "events_of"]) {
      if (data[name]) this[name] = Int32Array.from(data[name]);
    }
    for (const view of Object.values(this.views)) view.of = Int32Array.from(view.of);
    this.renamed = new Set(data.renamed || []);
    this.isGraph = Boolean(data.targets);
    this.size = this.parents.length;
  }

  row(number) {
    const chain = [number];
    while (chain[chain.length - 1]) chain.push(this.parents[chain[chain.length - 1]]);
    const row = new Int32Array(this.columns.length);
    for (const each of chain.reverse()) {
      for (let at = this.starts[each]; at < this.starts[each + 1]; at += 2) {
        row[this.changes[at]] = this.changes[at + 1];
      }
    }
    return row;
  }

  // The decoded state: {column name: value}.
  state(number) {
    const row = this.row(number);
    return Object.fromEntries(this.columns.map((name, i) => [name, this.tables[i][row[i]]]));
  }

  phases(view, number) {
    const seen = this.views[view];
    return seen.tuples[seen.of[number]].map((phase) => seen.phases[phase]);
  }

  edges(number) {
    const edges = [];
    if (this.isGraph) for (let e = this.first_edges[number]; e < this.first_edges[number + 1]; e++) edges.push(e);
    return edges;
  }

  // The address of the search's own path to a state: action indices.
  address(number) {
    const address = [];
    for (let at = number; at; at = this.parents[at]) {
      const from = this.edges(this.parents[at]);
      address.push(from.findIndex((edge) => this.targets[edge] === at));
    }
    return address.reverse();
  }

  // The states along an address; null where an action is not enabled.
  walk(address) {
    const states = [0];
    for (const choice of address) {
      const edge = this.edges(states[states.length - 1])[choice];
      if (edge === undefined) return null;
      states.push(this.targets[edge]);
    }
    return states;
  }

  // For each view phase of a name: which tuples of items have it.
  tuplesWith(view, phase) {
    const seen = this.views[view];
    const number = seen.phases.indexOf(phase);
    return new Set(seen.tuples.flatMap((tuple, i) => (tuple.includes(number) ? [i] : [])));
  }
};
