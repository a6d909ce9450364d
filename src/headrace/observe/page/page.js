const root = document.documentElement;
window.addEventListener("error", (event) => {
  root.dataset.errors = `${root.dataset.errors || ""}${event.message}; `;
});

const STAGES = ["train", "start", "wait", "open", "pin", "load", "collate", "send"];
const NAMES = { train: "training", start: "starting or preparing", wait: "waiting", open: "opening", pin: "pinning", load: "loading", collate: "collating", send: "sending" };
const SIGNS = { started: "▸", died: "✕", hung: "‖", added: "+", retired: "−", decided: "◆" };
const INNER = ["open", "pin"], LOWER = 0.45; // drawn over the wait that they are a part of, below this share of its height
const EPOCH_ROW = 16, AXIS_ROW = 20, TOP = EPOCH_ROW + AXIS_ROW, GAP = 4, STRIP = 6;
const PAPER = 720, NARROW = 2.5; // pixels: of a printed timeline, and below which pieces are not told apart
const SHORTEST = 20; // microseconds that fill the view at the closest zoom
const STEPS = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7].map((p) => n * 10 ** p)).filter((s) => s <= 2e7)
  .concat([30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000].map((s) => s * 1e6))
  .sort((a, b) => a - b);

/* Finds the pieces that lanes are made of: [begin, end, stage, row], in the order of their beginnings. */
function pieces(data) {
  const b = data.batches, at = (name, i) => (b[name] ? b[name][i] : null);
  const lanes = new Map([[-1, []], ...data.workers.map((worker) => [worker, []])]);
  const put = (worker, begin, end, stage, i) => {
    if (begin !== null && end !== null && end > begin) lanes.get(worker)?.push([begin, end, stage, i]);
  };
  const late = new Set(data.prepared); // batches in front of which something was prepared once
  const cut = data.left_out ? data.left_out[0] : -1;
  for (let i = 0; i < data.count; i++) {
    const asked = at("asked", i), delivered = at("delivered", i), worker = b.worker[i];
    const chain = [at("begun", i), at("loaded", i), at("collated", i), worker < 0 ? null : at("sent", i)];
    put(-1, asked, delivered, late.has(i) ? "start" : "wait", i);
    ["load", "collate", "send"].forEach((stage, k) => {
      if (!late.has(i)) put(worker, chain[k], chain[k + 1], stage, i);
      else if (worker >= 0) put(worker, chain[k], chain[k + 1], stage === "load" ? "start" : stage, i);
    });
    if (delivered !== null) {
      const from = asked === null ? -Infinity : asked;
      const pinning = Math.max(from, delivered - (at("pinned", i) || 0));
      put(-1, Math.max(from, pinning - (at("opened", i) || 0)), pinning, "open", i);
      put(-1, pinning, delivered, "pin", i);
    }
    if (i + 1 < data.count && i + 1 !== cut && b.epoch[i] === b.epoch[i + 1]) put(-1, delivered, at("asked", i + 1), i === data.first_step ? "start" : "train", i);
  }
  const first = new Map();
  for (let i = data.count - 1; i >= 0; i--) if (b.number[i] === 0) first.set(b.epoch[i], i);
  for (const [began, epoch] of data.epochs) if (first.has(epoch)) put(-1, began, at("asked", first.get(epoch)), "start", first.get(epoch));
  for (const lane of lanes.values()) lane.sort((p, q) => p[0] - q[0]);
  return lanes;
}

class Timeline {
  constructor(box, data) {
    box.hidden = false;
    this.data = data;
    this.canvas = box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.output = box.querySelector("output");
    this.tip = box.querySelector(".tip");
    this.lanes = pieces(data);
    this.rows = [...this.lanes.keys()];
    this.pointers = new Map();
    this.measure();
    this.show(...this.busiest());
    this.listen(box);
  }

  measure() {
    const b = this.data.batches, count = this.rows.length - 1;
    let low = Infinity, high = -Infinity;
    const see = (value) => { if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); } };
    for (const name of ["begun", "sent", "asked", "delivered"]) (b[name] || []).forEach(see);
    this.data.events.forEach((event) => see(event[0]));
    this.data.epochs.forEach((epoch) => see(epoch[0]));
    const margin = Math.max(10, (high - low) * 0.01);
    [this.low, this.high] = [low - margin, high + margin];
    this.workerHeight = count <= 8 ? 24 : count <= 24 ? 15 : Math.max(5, Math.floor(420 / count));
    this.height = TOP + 36 + count * (this.workerHeight + GAP) + GAP + STRIP + 4;
    this.longest = this.lanes.get(-1).filter((p) => p[2] === "wait").reduce((m, p) => (!m || p[1] - p[0] > m[1] - m[0] ? p : m), null);
  }

  /* What to show first: all of it; but where most of the time nothing happened, the larger part beside that. */
  busiest() {
    const b = this.data.batches, ends = [...(b.asked || []), ...b.delivered].filter((time) => time !== null).sort((p, q) => p - q);
    let widest = 0;
    for (let i = 1; i < ends.length; i++) if (ends[i] - ends[i - 1] > ends[widest + 1] - ends[widest]) widest = i - 1;
    const [left, right] = [ends[widest], ends[widest + 1]];
    if (!(right - left > (this.high - this.low) * 0.95) || this.longest?.[1] - this.longest?.[0] >= right - left) return [this.low, this.high];
    const [from, to] = widest + 1 > ends.length / 2 ? [ends[0], left] : [right, ends[ends.length - 1]];
    return [from - (to - from) * 0.03, to + (to - from) * 0.03];
  }

  place(row) { // the top and the height of a lane
    return row === 0 ? [TOP, 36] : [TOP + 36 + GAP + (row - 1) * (this.workerHeight + GAP), this.workerHeight];
  }

  show(from, to) {
    const most = this.high - this.low, span = Math.min(most, Math.max(SHORTEST, to - from));
    this.from = Math.max(this.low, Math.min(this.high - span, (from + to - span) / 2));
    this.to = this.from + span;
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }
  zoom(factor, around = (this.from + this.to) / 2) {
    const left = (around - this.from) * factor, right = (this.to - around) * factor;
    if (right + left < SHORTEST) return;
    this.show(around - left, around + right);
  }
  pan(share) { const by = (this.to - this.from) * share; this.show(this.from + by, this.to + by); }
  do(what) {
    const wait = this.longest, room = wait ? (wait[1] - wait[0]) * 0.6 : 0;
    ({
      in: () => this.zoom(0.5), out: () => this.zoom(2), left: () => this.pan(-0.25), right: () => this.pan(0.25),
      all: () => this.show(this.low, this.high), wait: () => wait && this.show(wait[0] - room, wait[1] + room),
    })[what]();
  }

  x(time) { return this.gutter + (time - this.from) / (this.to - this.from) * (this.width - this.gutter); }
  time(x) { return this.from + (x - this.gutter) / (this.width - this.gutter) * (this.to - this.from); }

  paints() { // the colours of the page, and a pattern for each stage
    const style = getComputedStyle(root), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const paint = { ink: colour("ink"), quiet: colour("quiet"), line: colour("line"), lane: colour("lane"), panel: colour("panel"), on: colour("on-bar"), idle: colour("idle-2") };
    for (const stage of STAGES) {
      paint[stage] = colour(stage);
      const tile = document.createElement("canvas"), c = tile.getContext("2d");
      tile.width = tile.height = 8;
      c.fillStyle = colour(stage);
      c.fillRect(0, 0, 8, 8);
      c.strokeStyle = c.fillStyle = colour(`${stage}-2`);
      c.lineWidth = 2;
      c.beginPath();
      if (stage === "wait") for (const d of [-8, 0, 8]) { c.moveTo(d - 1, 9); c.lineTo(d + 9, -1); }
      if (stage === "open") for (const d of [-8, 0, 8]) { c.moveTo(d - 1, -1); c.lineTo(d + 9, 9); }
      if (stage === "start") for (const d of [-8, -4, 0, 4, 8]) { c.moveTo(d - 1, -1); c.lineTo(d + 9, 9); }
      if (stage === "collate") for (const d of [1, 5]) { c.moveTo(d, 0); c.lineTo(d, 8); }
      if (stage === "send") for (const d of [1, 5]) { c.moveTo(0, d); c.lineTo(8, d); }
      c.stroke();
      paint[`${stage}-pattern`] = this.context.createPattern(tile, "repeat");
    }
    return paint;
  }

  draw() {
    const scale = Math.min(3, window.devicePixelRatio || 1), c = this.context;
    this.width = root.classList.contains("printing") ? PAPER : this.canvas.parentElement.clientWidth;
    this.gutter = this.width < 560 ? 62 : 76;
    this.canvas.style.height = `${this.height}px`;
    [this.canvas.width, this.canvas.height] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    c.setTransform(scale, 0, 0, scale, 0, 0);
    const paint = this.paints();
    c.clearRect(0, 0, this.width, this.height);
    c.font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
    c.textBaseline = "middle";
    this.drawLanes(c, paint);
    c.save();
    c.beginPath();
    c.rect(this.gutter, 0, this.width - this.gutter, this.height);
    c.clip();
    this.drawAxis(c, paint);
    const drawn = this.rows.reduce((sum, worker, row) => sum + this.drawPieces(c, paint, worker, row), 0);
    this.drawLeftOut(c, paint);
    this.drawEpochs(c, paint);
    this.drawEvents(c, paint);
    c.restore();
    this.drawStrip(c, paint);
    const step = 10 ** Math.max(1, Math.floor(Math.log10((this.to - this.from) / 100)));
    const [from, to] = [Math.max(0, this.from), Math.max(0, this.to)].map((time) => clock(time, Math.min(1e6, step)));
    this.output.textContent = `${from} to ${to}`;
    Object.assign(this.canvas.dataset, { drawn, from: this.from, to: this.to });
  }

  drawLanes(c, paint) {
    const every = Math.ceil(13 / (this.workerHeight + GAP));
    this.rows.forEach((worker, row) => {
      const [top, height] = this.place(row);
      c.fillStyle = paint.lane;
      c.fillRect(this.gutter, top, this.width - this.gutter, height);
      if (row && (row - 1) % every) return;
      c.fillStyle = paint.ink;
      c.textAlign = "left";
      c.fillText(row ? `worker ${worker}` : "loop", 0, top + height / 2, this.gutter - 6);
    });
  }

  drawAxis(c, paint) {
    const step = STEPS.find((s) => s / (this.to - this.from) * (this.width - this.gutter) >= (this.width < 560 ? 62 : 84)) || STEPS[STEPS.length - 1];
    const bottom = this.height - STRIP - 6;
    c.textAlign = "center";
    for (let tick = Math.ceil(Math.max(0, this.from) / step) * step; tick <= this.to; tick += step) {
      const x = this.x(tick), label = clock(tick, step), half = c.measureText(label).width / 2;
      c.fillStyle = paint.line;
      c.fillRect(Math.round(x), TOP - 4, 1, bottom - TOP + 4);
      c.fillStyle = paint.quiet;
      if (x - half >= this.gutter - 2 && x + half <= this.width) c.fillText(label, x, EPOCH_ROW + 7);
    }
  }

  drawPieces(c, paint, worker, row) {
    const lane = this.lanes.get(worker), [top, height] = this.place(row);
    const columns = Object.fromEntries(STAGES.map((name) => [name, new Float32Array(Math.ceil(this.width) + 2)]));
    let drawn = 0;
    for (const [begin, end, stage, i] of lane) {
      if (begin > this.to) break;
      if (end < this.from) continue;
      drawn++;
      if (this.x(end) - this.x(begin) < NARROW) {
        this.share(columns, begin, end, stage, worker);
        continue;
      }
      const left = Math.max(this.gutter - 20, this.x(begin)), right = Math.min(this.width + 20, this.x(end));
      const inner = INNER.includes(stage) ? height * LOWER : 0;
      c.fillStyle = right - left >= 5 ? paint[`${stage}-pattern`] : paint[stage];
      c.fillRect(left, top + inner, right - left - (right - left > 7 ? 1 : 0), height - inner);
      if ((stage === "load" || stage === "train") && height >= 14 && right - left > 34) {
        c.fillStyle = paint.on;
        c.textAlign = "left";
        const shown = Math.max(left, this.gutter) + 5;
        if (right - shown > 26) c.fillText(String(this.data.batches.number[i]), shown, top + height / 2 + 0.5);
      }
    }
    this.drawColumns(c, paint, columns, top, height);
    return drawn;
  }

  /* Adds a piece to the pixel columns that it touches; what the loop waits for is a part of its wait. */
  share(columns, begin, end, stage, worker) {
    const from = Math.max(0, this.x(begin)), to = Math.min(this.width, this.x(end));
    for (let x = Math.floor(from); x < to; x++) {
      const part = Math.min(to, x + 1) - Math.max(from, x);
      columns[stage][x] += part;
      if (worker < 0 && !["train", "start", "wait"].includes(stage)) columns.wait[x] -= part;
    }
  }

  drawColumns(c, paint, columns, top, height) { // the first stage lowest
    for (let x = this.gutter; x < this.width; x++) {
      let y = top + height;
      const filled = STAGES.reduce((sum, stage) => sum + Math.max(0, columns[stage][x]), 0), least = filled * height < 2 ? 2 / (filled * height) : 1;
      for (const stage of STAGES) {
        const part = Math.min(1, columns[stage][x]) * height * least;
        if (part < 0.3) continue;
        c.fillStyle = paint[stage];
        c.fillRect(x, Math.max(top, y - part), 1, Math.min(part, y - top));
        y -= part;
      }
    }
  }

  drawLeftOut(c, paint) {
    if (!this.data.left_out) return;
    const [first, count] = this.data.left_out, b = this.data.batches;
    const left = this.x(b.delivered[first - 1]), right = this.x(b.asked ? b.asked[first] : b.delivered[first]);
    const bottom = this.height - STRIP - 6;
    if (!(right > left)) return;
    c.save();
    c.beginPath();
    c.rect(left, TOP, right - left, bottom - TOP);
    c.clip();
    c.fillStyle = paint.panel;
    c.fillRect(left, TOP, right - left, bottom - TOP);
    c.strokeStyle = paint.line;
    const [from, to] = [Math.max(left, this.gutter), Math.min(right, this.width)];
    for (let x = from - (bottom - TOP); x < to; x += 10) { c.beginPath(); c.moveTo(x, bottom); c.lineTo(x + bottom - TOP, TOP); c.stroke(); }
    const label = `${count.toLocaleString("en")} batches left out`, half = c.measureText(label).width / 2 + 6, middle = (from + to) / 2;
    if (half * 2 < to - from) {
      c.fillStyle = paint.panel;
      c.fillRect(middle - half, (TOP + bottom) / 2 - 10, half * 2, 20);
      c.fillStyle = paint.ink;
      c.textAlign = "center";
      c.fillText(label, middle, (TOP + bottom) / 2);
    }
    c.restore();
  }

  drawEpochs(c, paint) {
    let free = -Infinity;
    for (const [began, epoch] of this.data.epochs) {
      const x = this.x(began), label = `epoch ${epoch}`;
      if (x < this.gutter - 1 || x > this.width) continue;
      c.fillStyle = paint.quiet;
      for (let y = 2; y < this.height - STRIP - 6; y += 6) c.fillRect(Math.round(x), y, 1, 3);
      const wide = c.measureText(label).width;
      if (x > free && x + wide + 5 < this.width) { c.textAlign = "left"; c.fillStyle = paint.ink; c.fillText(label, x + 5, 8); free = x + wide + 14; }
    }
  }

  drawEvents(c, paint) {
    for (const event of this.data.events) {
      const [x, y] = this.spot(event);
      if (x < this.gutter - 8 || x > this.width + 8) continue;
      c.beginPath();
      c.arc(x, y, 7, 0, 7);
      c.fillStyle = paint.ink;
      c.fill();
      c.strokeStyle = paint.panel;
      c.lineWidth = 1.5;
      c.stroke();
      c.fillStyle = paint.panel;
      c.textAlign = "center";
      c.fillText(SIGNS[event[1]] || "•", x, y + 0.5);
    }
  }
  spot([time, , , worker]) { // the place of an event's marker
    const row = worker === null ? 0 : Math.max(0, this.rows.indexOf(worker)), [top, height] = this.place(row);
    return [this.x(time), top + height / 2];
  }

  drawStrip(c, paint) { // which part of all the time is shown
    const y = this.height - STRIP, wide = this.width - this.gutter, at = (time) => (time - this.low) / (this.high - this.low) * wide;
    c.fillStyle = paint.lane;
    c.fillRect(this.gutter, y, wide, STRIP);
    c.fillStyle = paint.quiet;
    c.fillRect(this.gutter + at(this.from), y, Math.max(3, at(this.to) - at(this.from)), STRIP);
  }

  /* What is under a point: an event, or the innermost piece; a piece counts some pixels beyond its ends. */
  under(x, y) {
    const event = this.data.events.find((one) => { const [a, b] = this.spot(one); return Math.hypot(a - x, b - y) <= 9; });
    if (event) return { event };
    const row = this.rows.findIndex((_, k) => { const [top, height] = this.place(k); return y >= top && y <= top + height; });
    if (row < 0 || x < this.gutter) return null;
    const time = this.time(x), slack = 2 * (this.to - this.from) / this.width;
    const [top, height] = this.place(row), off = (piece) => Math.max(piece[0] - time, time - piece[1], 0);
    let best = null;
    for (const piece of this.lanes.get(this.rows[row])) {
      if (piece[0] > time + slack) break;
      if (INNER.includes(piece[2]) && y < top + height * LOWER) continue;
      if (off(piece) <= slack && (!best || off(piece) <= off(best))) best = piece;
    }
    return best && { stage: best[2], row: best[3], length: best[1] - best[0] };
  }

  lines({ event, stage, row, length }) { // what the tooltip says: a heading, and pairs
    if (event) return [`${event[1]}, ${duration(event[0])}`, [[event[2], ""]]];
    const b = this.data.batches, at = (name) => (b[name] ? b[name][row] : null);
    const between = (from, to) => (at(from) === null || at(to) === null ? null : at(to) - at(from));
    const said = [["made by", b.worker[row] < 0 ? "" : this.data.names[b.worker[row]] || `worker ${b.worker[row]}`], ["samples", b.samples[row] || ""], ["size", b.bytes[row] ? bytes(b.bytes[row]) : ""]];
    const times = [["loading", between("begun", "loaded")], ["collating", between("loaded", "collated")], ["sending", between("collated", "sent")], ["until taken", between("sent", "arrived")], ["opening", at("opened")], ["pinning", at("pinned")], ["waited for", between("asked", "delivered")], ["core time", at("cpu")], ["without a core", at("queued")]];
    const known = times.filter(([, value]) => value !== null).map(([name, value]) => [name, duration(value)]);
    return [`${NAMES[stage]} ${duration(length)}: batch ${b.number[row]} of epoch ${b.epoch[row]}`, said.filter(([, value]) => value !== "").concat(known)];
  }

  tell(x, y) {
    const found = this.under(x, y);
    this.tip.hidden = !found;
    if (!found) return;
    const [heading, pairs] = this.lines(found), title = document.createElement("b");
    title.textContent = heading;
    this.tip.replaceChildren(title, ...pairs.map((pair) => {
      const line = document.createElement("div");
      line.append(...pair.map((part) => Object.assign(document.createElement("span"), { textContent: part })));
      return line;
    }));
    const left = x + 16 + this.tip.offsetWidth > this.width ? x - 16 - this.tip.offsetWidth : x + 16;
    Object.assign(this.tip.style, { left: `${Math.max(0, Math.min(left, this.width - this.tip.offsetWidth))}px`, top: `${y + 18}px` });
  }

  listen(box) {
    const canvas = this.canvas, spot = (e) => { const r = canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
    box.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => this.do(button.dataset.do)));
    canvas.addEventListener("wheel", (e) => this.wheel(e, spot(e)), { passive: false });
    canvas.addEventListener("dblclick", (e) => this.zoom(0.4, this.time(spot(e)[0])));
    canvas.addEventListener("keydown", (e) => this.key(e));
    canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); this.pointers.set(e.pointerId, spot(e)); canvas.classList.add("moving"); this.tell(...spot(e)); });
    canvas.addEventListener("pointermove", (e) => (this.pointers.has(e.pointerId) ? this.move(e.pointerId, spot(e)) : this.tell(...spot(e))));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (e) => { this.pointers.delete(e.pointerId); canvas.classList.remove("moving"); });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.show(this.from, this.to)).observe(canvas.parentElement);
  }

  wheel(event, [x]) {
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (!sideways && event.deltaY > 0 && this.to - this.from >= this.high - this.low) return; // all is seen: let the page scroll
    event.preventDefault();
    if (sideways) this.pan(sideways * unit / this.width);
    else this.zoom(Math.exp(event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.002)), this.time(Math.max(this.gutter, x)));
    this.tip.hidden = true;
  }

  key(event) {
    const what = { "+": "in", "=": "in", "-": "out", "_": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Home: "all" }[event.key];
    if (!what || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.do(what);
  }

  move(id, [x, y]) { // one pointer drags, two pinch
    const [before] = this.pointers.get(id), other = [...this.pointers].find(([key]) => key !== id);
    if (other) {
      const fixed = other[1][0], old = Math.abs(before - fixed), now = Math.abs(x - fixed);
      if (old > 4 && now > 4) this.zoom(old / now, this.time(fixed));
    } else this.pan((before - x) / (this.width - this.gutter));
    this.pointers.set(id, [x, y]);
    if (Math.abs(x - before) > 1) this.tip.hidden = true;
  }
}

const drawings = JSON.parse(document.getElementById("timelines").textContent);
const timelines = [...document.querySelectorAll(".timeline")].map((box) => new Timeline(box, drawings[Number(box.dataset.timeline)]));
const redraw = () => timelines.forEach((timeline) => timeline.draw());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.addEventListener("beforeprint", () => { root.classList.add("printing"); redraw(); });
window.addEventListener("afterprint", () => { root.classList.remove("printing"); redraw(); });
root.dataset.timelines = timelines.length;
