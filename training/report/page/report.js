// SPDX-License-Identifier: Apache-2.0
// Draws the report from the JSON in #data. Names come from models and may be any text: they are set as text, never as
// HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PHASES = ["forward", "backward", "optimizer"];

  // --- elements and numbers ---
  const SVG = "http://www.w3.org/2000/svg";
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    for (const child of children.flat(Infinity))
      if (child !== null && child !== undefined) element.append(child);
    return element;
  }
  const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  const color = name => `var(--${name})`;
  const sum = (list, of) => list.reduce((all, item) => all + of(item), 0);

  const short = value =>
      value === null ? "-" : Number(value.toPrecision(3)).toLocaleString("en", {maximumSignificantDigits: 3});
  function exact(value) {
    if (value === null) return "not a number";
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
  }
  function time(us) {
    if (us >= 1e6) return `${short(us / 1e6)} s`;
    return us >= 1000 ? `${short(us / 1000)} ms` : `${short(us)} µs`;
  }
  // The unit that a number of bytes is best told in: [its bytes, its name].
  function unitOf(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (count >= 1024 ** (unit + 1) && unit < 4) ++unit;
    return [1024 ** unit, ` ${units[unit]}`];
  }
  function bytes(count) {
    const [size, name] = unitOf(count);
    return `${size === 1 ? count : (count / size).toFixed(1)}${name}`;
  }
  const percent = share => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
  const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

  // --- what the sections go by ---
  const runs = data.runs;
  runs.forEach((run, r) => run.steps.forEach((step, i) => {
    step.run = r;
    step.index = i;
  }));
  const ran = runs.flatMap(run => run.steps.filter(step => step.us !== undefined)).sort((a, b) => a.begin - b.begin);
  const kernelTime = sum(ran, step => step.us), runTime = sum(runs, run => run.us);
  // Runs without training have one phase, which says nothing.
  const isPhased = ran.some(step => step.phase !== "forward");
  // A program of a wrapped module is of one phase, a whole step of several.
  function runName(r) {
    if (runs.length === 1) return "the step";
    const phases = new Set(runs[r].steps.map(step => step.phase));
    return `program ${r + 1} of ${runs.length}${isPhased && phases.size === 1 ? `, ${[...phases][0]}` : ""}`;
  }
  const touched = step => step.bytes[0] + step.bytes[1] + step.bytes[2];
  // "blocks.0.fc (torch.nn.Linear) at /home/me/net.py:12" as "net.py:12" for a table; the whole is its title.
  function lineOf(source) {
    const found = /([^/\\\s]+:\d+)(?=\s|$)/.exec(source || "");
    return found ? found[1] : source || "";
  }

  const main = document.getElementById("main"), links = document.getElementById("sections");
  function section(id, title, ...children) {
    links.append(el("li", {}, el("a", {href: `#${id}`}, title)));
    main.append(
        el("section", {id, "aria-labelledby": `${id}-title`}, el("h2", {id: `${id}-title`, tabindex: -1}, title),
           ...children));
  }

  // --- charts ---
  // Draws at the width that there is, and again where that changes.
  function responsive(attributes, draw) {
    const box = el("div", {class: "chart", ...attributes});
    let width = 0;
    const redraw = () => {
      if (!box.clientWidth || box.clientWidth === width) return;
      width = box.clientWidth;
      box.replaceChildren(draw(width));
      box.dispatchEvent(new Event("drawn"));
    };
    new ResizeObserver(redraw).observe(box);
    box.redraw = () => {
      width = 0;
      redraw();
    };
    return box;
  }

  // Makes a box one that a pointer, or Left, Right, Page Up, Page Down, Home and End, move through `count` places.
  // at(x): the place at a share of the width; show(place): what the readout says; x(place): where its line is, in
  // pixels.
  function follow(box, readout, count, {at, show, x}) {
    let place = -1;
    const go = to => {
      place = Math.max(0, Math.min(count() - 1, to));
      const said = show(place);
      readout.replaceChildren(...[said].flat());
      box.setAttribute("aria-valuenow", place + 1);
      box.setAttribute("aria-valuemax", count());
      box.setAttribute("aria-valuetext", readout.textContent);
      mark();
    };
    const mark = () => {
      const drawing = box.querySelector("svg");
      if (!drawing || place < 0) return;
      drawing.querySelectorAll(".cursor").forEach(old => old.remove());
      drawing.append(
          svg("line", {class: "cursor", x1: x(place), x2: x(place), y1: 0, y2: drawing.getAttribute("height")}));
    };
    fill(
        box, {
          role: "slider",
          tabindex: 0,
          "aria-valuemin": 1,
          "aria-valuemax": count(),
          "aria-valuenow": 1,
          onpointermove: event => point(event),
          onpointerdown: event => point(event),
          ondrawn: mark,
          onkeydown: event => {
            const page = Math.max(1, Math.round(count() / 20));
            const moves = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: page, PageDown: -page};
            if (event.key in moves) go(place + moves[event.key]);
            else if (event.key === "Home") go(0);
            else if (event.key === "End") go(count() - 1);
            else return;
            event.preventDefault();
          },
        },
        []);
    const point = event => {
      const frame = box.getBoundingClientRect();
      go(at((event.clientX - frame.left) / frame.width));
    };
    return {
      go,
      restart: () => {
        place = -1;
      }
    };
  }

  const MARGIN = {left: 64, right: 12, top: 10, bottom: 40};
  function ticks(low, high, wanted) {
    if (!(high > low)) return [low];
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
    const out = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step)
      out.push(Math.abs(t) < step * 1e-9 ? 0 : t);
    return out;
  }
  // A tick with as many digits as tell it from the next one.
  function tickText(t, all) {
    const step = all.length > 1 ? all[1] - all[0] : Math.abs(t) || 1,
          digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return digits > 5 || Math.abs(t) >= 1e6 ?
        t.toExponential(1) :
        t.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  }
  // labels: {xName, unit: what a tick of the y axis is a multiple of, with its name}.
  function frame(width, height, xs, ys, labels) {
    const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const x = v => MARGIN.left + (xs[1] > xs[0] ? (v - xs[0]) / (xs[1] - xs[0]) : 0.5) * (right - MARGIN.left);
    const y = v => bottom - (ys[1] > ys[0] ? (v - ys[0]) / (ys[1] - ys[0]) : 0.5) * (bottom - MARGIN.top);
    const drawing = svg("svg", {width, height, "aria-hidden": true});
    const [unit, unitName] = labels.unit || [1, ""], marks = ticks(ys[0] / unit, ys[1] / unit, 5);
    for (const t of marks) {
      drawing.append(
          svg("line", {class: "grid", x1: MARGIN.left, x2: right, y1: y(t * unit), y2: y(t * unit)}),
          svg("text", {x: MARGIN.left - 6, y: y(t * unit) + 4, "text-anchor": "end"},
              `${tickText(t, marks)}${unitName}`));
    }
    for (const t of ticks(xs[0], xs[1], Math.max(2, width / 110)).filter(Number.isInteger)) {
      drawing.append(
          svg("line", {class: "axis", x1: x(t), x2: x(t), y1: bottom, y2: bottom + 4}),
          svg("text", {x: x(t), y: bottom + 17, "text-anchor": "middle"}, t.toLocaleString("en")));
    }
    drawing.append(
        svg("line", {class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom}),
        svg("text", {x: (MARGIN.left + right) / 2, y: height - 4, "text-anchor": "middle"}, labels.xName));
    return {drawing, x, y, bottom};
  }
  const path = (points, x, y) => {
    let line = "", open = false;
    for (const [px, py] of points) {
      if (py === null) {
        open = false;
        continue;
      }
      line += `${open ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
      open = true;
    }
    return line;
  };
  function range(values) {
    const there = values.filter(v => v !== null);
    if (!there.length) return [0, 1];
    const low = Math.min(...there), high = Math.max(...there);
    return low === high ? [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2] : [low, high];
  }
  // rows: [name, paint, how it is drawn: "thin" or "dashed"; an area where it is not said].
  const legend = rows =>
      el("ul", {class: "legend"},
         rows.map(([name, paint, how]) => el("li", {}, el("i", {class: how, style: `color:${paint}`}), name)));

  function smooth(points) {
    let mean = null;
    return points.map(([update, loss]) => {
      if (loss !== null) mean = mean === null ? loss : 0.9 * mean + 0.1 * loss;
      return [update, loss === null ? null : mean];
    });
  }
  // Lines over updates: [{name, points: [[update, value]], paint, thin, dots}].
  function curves(label, lines) {
    const drawn = lines.filter(line => line.points.length), all = drawn.flatMap(line => line.points);
    const main = drawn[0].points,
          readout =
              el("div", {class: "readout", role: "status"}, "Point at the chart, or focus it and use the arrow keys.");
    const xs = [Math.min(...all.map(p => p[0])), Math.max(...all.map(p => p[0]))], ys = range(all.map(p => p[1]));
    let scale = null;
    const box = responsive({"aria-label": label}, width => {
      const {drawing, x, y} = frame(width, 260, xs, ys, {xName: "update"});
      scale = {x, width};
      for (const line of drawn) {
        drawing.append(svg("path", {
          d: path(line.points, x, y),
          fill: "none",
          stroke: line.paint,
          "stroke-width": line.thin ? 1 : 2,
          "stroke-opacity": line.thin ? 0.4 : 1,
          "stroke-dasharray": line.dots ? "5 4" : null
        }));
        if (line.dots)
          for (const [px, py] of line.points)
            if (py !== null) drawing.append(svg("circle", {cx: x(px), cy: y(py), r: 3.5, fill: line.paint}));
      }
      return drawing;
    });
    const nearest = update =>
        main.reduce((best, p, i) => Math.abs(p[0] - update) < Math.abs(main[best][0] - update) ? i : best, 0);
    follow(box, readout, () => main.length, {
      at: share => nearest(
          xs[0] + (share * scale.width - MARGIN.left) / (scale.width - MARGIN.left - MARGIN.right) * (xs[1] - xs[0])),
      x: place => scale.x(main[place][0]),
      show: place => {
        const at = main[place][0];
        const said = drawn.map(line => [line.name, line.points.filter(p => p[0] <= at).pop()]).filter(([, p]) => p);
        return `Update ${at.toLocaleString("en")}: ${
            said.map(([name, p]) => `${name} ${exact(p[1])}${p[0] === at ? "" : ` (update ${p[0]})`}`).join(", ")}`;
      },
    });
    return [
      legend(drawn.map(
          line =>
              [line.name, line.paint,
               line.dots     ? "dashed" :
                   line.thin ? "thin" :
                               "line"])),
      box, readout
    ];
  }

  // --- tables ---
  // columns: [name, value of a row, text of a row's value, "number" or "words"]; sorted by column `by`, largest first.
  function table(caption, columns, rows, by, limit = 12) {
    let sorted = by, ascending = false, shown = limit;
    const body = el("tbody"),
          heads = columns.map(
              ([name, , , kind], c) =>
                  el("th", {class: kind, scope: "col"},
                     el("button", {
                       type: "button",
                       onclick: () => {
                         ascending = sorted === c ? !ascending : kind === "words";
                         sorted = c;
                         draw();
                       }
                     },
                        name)));
    const more = el("button", {
      type: "button",
      onclick: () => {
        shown = rows.length;
        draw();
      }
    });
    const most = Math.max(...rows.map(row => columns[by][1](row)), 0);
    function draw() {
      const value = columns[sorted][1];
      rows.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (ascending ? 1 : -1));
      heads.forEach(
          (head, c) => head.setAttribute(
              "aria-sort",
              c !== sorted  ? "none" :
                  ascending ? "ascending" :
                              "descending"));
      body.replaceChildren(...rows.slice(0, shown).map(
          row => el(
              "tr", {title: row.title},
              columns.map(
                  ([, of, text, kind], c) => el(
                      "td", {class: kind}, text ? text(row) : String(of(row)),
                      c === by && most ? el("div", {class: "bar", style: `width:${100 * of(row) / most}%`}) : null)))));
      more.hidden = shown >= rows.length;
      more.textContent = `Show all ${rows.length} rows`;
    }
    draw();
    return el(
        "div", {}, el("h3", {}, caption),
        el("div", {class: "scroll", role: "region", tabindex: 0, "aria-label": caption},
           el("table", {}, el("thead", {}, el("tr", {}, heads)), body)),
        el("div", {class: "controls"}, more));
  }

  // Sums of time, calls and bytes of the steps with the same key.
  function grouped(steps, key) {
    const groups = new Map();
    for (const step of steps) {
      const name = key(step);
      if (!groups.has(name))
        groups.set(name, {name, calls: 0, us: 0, cpu: 0, bytes: 0, forward: 0, backward: 0, optimizer: 0});
      const group = groups.get(name);
      group.calls += 1;
      group.us += step.us;
      group.cpu += step.cpu_us;
      group.bytes += touched(step);
      group[step.phase] += step.us;
    }
    return [...groups.values()];
  }

  // --- the sections ---
  document.getElementById("title").textContent = data.title;
  document.getElementById("made").textContent = `caesura report, made ${data.made}`;

  function summary() {
    const tiles = [], last = data.curves.points.at(-1),
          best = data.curves.validations.filter(v => v[1] !== null).sort((a, b) => a[1] - b[1])[0];
    if (last) tiles.push(["loss at the end", exact(last[1])], ["updates", last[0].toLocaleString("en")]);
    if (best) tiles.push(["lowest validation loss", `${exact(best[1])} (update ${best[0]})`]);
    if (ran.length) {
      const peak = Math.max(...runs.map(run => run.memory.peak < 0 ? 0 : total(run.memory.samples[run.memory.peak])));
      tiles.push(
          ["time of the step", time(runTime)], ["steps of the plan", ran.length.toLocaleString("en")],
          ["memory at its peak", bytes(peak)], ["threads to a kernel", runs[0].threads]);
      const parameters = Math.max(...runs.map(run => run.memory.parameters));
      if (parameters) tiles.push(["parameters and optimizer state", bytes(parameters)]);
    }
    if (data.seconds)
      tiles.push([
        "own kernels' share of time", percent(data.seconds[0] / Math.max(1e-12, data.seconds[0] + data.seconds[1]))
      ]);
    section(
        "summary", "Summary",
        el("dl", {class: "tiles"},
           tiles.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  }

  function advice() {
    section(
        "try", "Try first",
        data.advice.length === 0 ?
            el("p", {}, "Nothing stands out.") :
            el("ol", {class: "advice"},
               data.advice.map(item => el("li", {}, el("strong", {}, item.what), el("br"), item.why))));
  }

  function losses() {
    const {points, validations, metric} = data.curves;
    if (!points.length) return;
    const loss = points.map(p => [p[0], p[1]]);
    const parts = [
      el("h3", {}, "Loss"),
      curves(
          "Loss over updates",
          [
            {name: "loss, smoothed", points: smooth(loss), paint: color("forward")},
            {name: "loss", points: loss, paint: color("forward"), thin: true},
            {name: "validation loss", points: validations.map(v => [v[0], v[1]]), paint: color("backward"), dots: true}
          ])
    ];
    if (metric)
      parts.push(el("h3", {}, metric), curves(`${metric} over updates`, [
                   {name: metric, points: validations.map(v => [v[0], v[2]]), paint: color("optimizer"), dots: true}
                 ]));
    parts.push(el("h3", {}, "Learning rate"), curves("Learning rate over updates", [
                 {name: "learning rate", points: points.map(p => [p[0], p[2]]), paint: color("optimizer")}
               ]));
    section("curves", "Loss and rate", ...parts.flat());
  }

  function stepText(step) {
    const about = [
      el("strong", {}, `${step.op} `), el("span", {class: "mono"}, step.node), el("br"),
      `step ${step.index + 1}${runs.length > 1 ? ` of program ${step.run + 1}` : ""}, `,
      `${isPhased ? `${step.phase}, ` : ""}${
          step.us === undefined ? "not reached" : time(step.us)} on ${step.provider}`
    ];
    if (step.kind === "dynamic") about.push(", sized at run time");
    if (step.source) about.push(el("br"), el("span", {class: "mono"}, step.source));
    if (step.parts) about.push(el("br"), `fused from ${step.parts.map(part => part.op).join(" + ")}`);
    if (step.outputs) about.push(el("br"), el("span", {class: "mono"}, `gives ${step.outputs.join(", ")}`));
    return about;
  }

  function timeline() {
    if (!ran.length) return;
    const begin = Math.min(...runs.map(run => run.begin)), end = Math.max(...ran.map(step => step.begin + step.us));
    const at = us => (us - begin) / (end - begin);
    const readout =
        el("div", {class: "readout", role: "status"}, "Point at the steps, or focus them and use the arrow keys.");
    let width = 1;
    const box = responsive({id: "strip", "aria-label": "Steps in the order in which they ran"}, w => {
      width = w;
      const drawing = svg("svg", {width: w, height: 122, "aria-hidden": true});
      const block = (from, to, y, height, paint, opacity = 1) => drawing.append(svg("rect", {
        x: at(from) * w,
        width: Math.max(0.4, (at(to) - at(from)) * w),
        y,
        height,
        fill: paint,
        "fill-opacity": opacity
      }));
      // Neighbours of the same phase, and of the same line, are one block.
      const blocks = (key, draw) => {
        for (let i = 0; i < ran.length;) {
          let j = i;
          while (j + 1 < ran.length && ran[j + 1].run === ran[i].run && key(ran[j + 1]) === key(ran[i])) ++j;
          draw(ran[i], ran[j].begin + ran[j].us, i);
          i = j + 1;
        }
      };
      let shade = false;
      blocks(step => step.phase, (step, to) => block(step.begin, to, 0, 22, color(step.phase)));
      blocks(step => `${step.phase} ${step.source}`, (step, to) => {
        shade = !shade;
        block(step.begin, to, 26, 22, color(step.phase), shade ? 0.75 : 0.45);
      });
      ran.forEach((step, i) => block(step.begin, step.begin + step.us, 52, 46, color(step.phase), i % 2 ? 0.95 : 0.6));
      drawing.append(
          svg("text", {x: 0, y: 116}, "0"), svg("text", {x: w, y: 116, "text-anchor": "end"}, time(end - begin)),
          svg("text", {x: w / 2, y: 116, "text-anchor": "middle"}, "time"));
      return drawing;
    });
    follow(box, readout, () => ran.length, {
      at: share => {
        const us = begin + share * (end - begin), found = ran.findIndex(step => step.begin + step.us >= us);
        return found < 0 ? ran.length - 1 : found;
      },
      x: place => at(ran[place].begin + ran[place].us / 2) * width,
      show: place => stepText(ran[place]),
    });
    const share = row => percent(row.us / Math.max(1e-9, kernelTime));
    const common = [
      ["time", row => row.us, row => time(row.us), "number"], ["share", row => row.us, share, "number"],
      ["calls", row => row.calls, null, "number"]
    ];
    const parts = [
      el("p", {class: "dim"},
         `Rows from the top: phases, source lines, steps. The steps take ${time(kernelTime)} of ${time(runTime)}.`),
      isPhased ?
          legend(PHASES.filter(phase => ran.some(step => step.phase === phase)).map(phase => [phase, color(phase)])) :
          null,
      box, readout,
      table(
          "By op",
          [
            ["op", row => row.name, null, "words"], ...common,
            ["CPU time", row => row.cpu, row => time(row.cpu), "number"],
            ["memory touched", row => row.bytes, row => bytes(row.bytes), "number"]
          ],
          grouped(ran, step => step.op), 1)
    ];
    if (ran.some(step => step.source)) {
      const rows = grouped(ran.filter(step => step.source), step => lineOf(step.source));
      const full = new Map(ran.map(step => [lineOf(step.source), step.source]));
      rows.forEach(row => {
        row.title = full.get(row.name);
      });
      parts.push(table(
          "By source line",
          [
            ["line", row => row.name, null, "words"], ...common,
            ...(isPhased ? ["forward", "backward"] : []).map(
                phase => [phase, row => row[phase], row => row[phase] ? time(row[phase]) : "", "number"])
          ],
          rows, 1));
    } else {
      parts.push(el(
          "p", {class: "dim"},
          "The model says of no node which source line it came from. Models that torch.onnx.export(dynamo=True) has " +
              "written do, and modules that caesura has captured."));
    }
    section("timeline", "Timeline", ...parts);
  }

  const total = sample => sample[1] + sample[2] + sample[3] + sample[4];
  function memory() {
    const recorded = runs.filter(run => run.memory.samples.length);
    if (!recorded.length) return;
    const layers = [
      ["arena (planned)", "arena", 1], ["handed out", "fetch", 2], ["sized at run time", "dynamic", 3],
      ["cached values", "cached", 4]
    ];
    let run = recorded.reduce(
        (a, b) => total(a.memory.samples[a.memory.peak]) >= total(b.memory.samples[b.memory.peak]) ? a : b);
    const readout = el("div", {class: "readout", role: "status"}), held = el("div"), kept = el("p", {class: "dim"});
    let scale = null;
    const box = responsive({id: "memory-chart", "aria-label": "Memory alive at each step"}, width => {
      const {samples, peak, arena} = run.memory;
      const high = 1.05 * Math.max(arena, ...samples.map(total), 1);
      const {drawing, x, y, bottom} =
          frame(width, 280, [1, samples.length], [0, high], {xName: "step", unit: unitOf(high)});
      scale = {x, width};
      const below = samples.map(() => 0);
      for (const [, name, at] of layers) {
        if (!samples.some(sample => sample[at])) continue;
        const lower = samples.map((_, i) => [i + 1, below[i]]).reverse();
        samples.forEach((sample, i) => {
          below[i] += sample[at];
        });
        const upper = samples.map((_, i) => [i + 1, below[i]]);
        drawing.append(svg("path", {
          d: `${path(upper, x, y)}${path(lower, x, y).replace("M", "L")}Z`,
          fill: color(name),
          "fill-opacity": 0.55,
          stroke: color(name)
        }));
      }
      const at = x(peak + 1);
      drawing.append(
          svg("line", {
            x1: MARGIN.left,
            x2: width - MARGIN.right,
            y1: y(arena),
            y2: y(arena),
            stroke: color("warn"),
            "stroke-dasharray": "6 4"
          }),
          svg("line", {
            x1: at,
            x2: at,
            y1: y(total(samples[peak])),
            y2: bottom,
            stroke: color("text"),
            "stroke-dasharray": "2 3"
          }),
          svg("text", {
            x: Math.min(Math.max(at, MARGIN.left + 20), width - 30),
            y: bottom - 6,
            "text-anchor": "middle",
            style: `fill:${color("text")}`
          },
              "peak"));
      return drawing;
    });
    const cursor = follow(box, readout, () => run.memory.samples.length, {
      at: share => Math.round(
          (share * scale.width - MARGIN.left) / (scale.width - MARGIN.left - MARGIN.right) *
          (run.memory.samples.length - 1)),
      x: place => scale.x(place + 1),
      show: place => {
        const sample = run.memory.samples[place], step = run.steps[sample[0]];
        const parts = layers.filter(([, , at]) => sample[at]).map(([name, , at]) => `${name} ${bytes(sample[at])}`);
        return [
          `Step ${sample[0] + 1} of ${run.steps.length}, ${step.op}: ${bytes(total(sample))} (${
              parts.join(", ") || "nothing"})`,
          el("br"), el("span", {class: "mono"}, step.source || step.node)
        ];
      },
    });
    function choose(chosen) {
      run = chosen;
      const {samples, peak, largest, arena, parameters, constants, feeds} = run.memory, most = total(samples[peak]);
      readout.replaceChildren(`The peak is ${bytes(most)}, at step ${samples[peak][0] + 1} (${
          run.steps[samples[peak][0]].op}). Point at the chart, or focus it and use the arrow keys.`);
      kept.textContent =
          `The plan's arena takes ${bytes(arena)} (dashed line). Beside it lie parameters and optimizer state, ${
              bytes(parameters)}, constants, ${bytes(constants)}, and inputs, ${bytes(feeds)}.`;
      held.replaceChildren(table(
          "The largest values alive at the peak",
          [
            ["value", row => row.name, null, "words"], ["bytes", row => row.bytes, row => bytes(row.bytes), "number"],
            ["share", row => row.bytes, row => percent(row.bytes / Math.max(1, most)), "number"],
            ["type", row => row.type, null, "words"],
            ["from", row => row.first, row => row.first < 0 ? "the start" : `step ${row.first + 1}`, "number"],
            ["to", row => row.last, row => `step ${row.last + 1}`, "number"]
          ],
          largest, 1, 16));
      cursor.restart();
      box.redraw();
    }
    const choice = recorded.length < 2 ?
        null :
        el("div", {class: "controls"},
           el("div", {},
              el("label",
                 { for: "memory-run"
                 },
                 "Program"),
              el("select", {id: "memory-run", onchange: event => choose(recorded[event.target.value])},
                 recorded.map(
                     (r, i) =>
                         el("option", {value: i, ...(r === run ? {selected: ""} : {})},
                            `${runName(runs.indexOf(r))}: ${bytes(total(r.memory.samples[r.memory.peak]))}`)))));
    section(
        "memory", "Memory", choice,
        legend(layers.filter(([, , at]) => recorded.some(r => r.memory.samples.some(s => s[at])))
                   .map(([name, paint]) => [name, color(paint)])),
        box, readout, kept, held);
    choose(run);
  }

  function graph() {
    if (!runs.length) return;
    const host = el("div", {id: "graph-groups"});
    const node = step =>
        el("li", {}, stepText(step),
           step.inputs ? el("div", {class: "mono dim"}, `reads ${step.inputs.join(", ")}`) : null,
           step.parts ? el("details", {}, el("summary", {}, `${plural(step.parts.length, "fused node")}`),
                           el("ul", {class: "steps"},
                              step.parts.map(
                                  part =>
                                      el("li", {}, el("strong", {}, `${part.op} `),
                                         el("span", {class: "mono"}, `${part.node} ${part.source}`))))) :
                        null);
    const fits = (step, words) => !words || [
      step.op, step.node, step.source || "", ...(step.parts || []).map(part => part.op)
    ].some(text => text.toLowerCase().includes(words));
    function draw(words) {
      host.replaceChildren();
      runs.forEach((run, r) => {
        const failed = run.error ? `, failed: ${run.error}` : "";
        host.append(
            el("h3", {},
               `${runName(r)[0].toUpperCase()}${runName(r).slice(1)}: ${plural(run.steps.length, "step")}, ${
                   time(run.us)}${failed}`));
        let group = null;
        for (const step of run.steps) {
          if (step.kind === "yield") {
            host.append(
                el("div", {class: "yield"}, el("strong", {}, "Yield: "),
                   `the run waits here. It hands out ${(step.inputs || []).join(", ") || "nothing"} and goes on with ${
                       (step.outputs || []).join(", ") || "nothing"}.`));
            group = null;
            continue;
          }
          if (!fits(step, words)) continue;
          const key = `${step.phase} ${lineOf(step.source)}`;
          if (group === null || group.key !== key) {
            const members = [], of = {key, members};
            of.title = el("summary");
            of.box =
                el("details", {
                  ontoggle: () => {
                    if (of.box.open && of.box.childElementCount === 1)
                      of.box.append(el("ul", {class: "steps"}, members.map(node)));
                  }
                },
                   of.title);
            host.append(of.box);
            group = of;
          }
          group.members.push(step);
          const fused = sum(group.members, s => s.parts ? 1 : 0);
          group.title.replaceChildren(
              isPhased ? el("span", {class: `phase ${step.phase}`}, step.phase) : "",
              `${lineOf(step.source) || step.op}: ${plural(group.members.length, "step")}`,
              fused ? `, ${plural(fused, "fused group")}` : "", `, ${time(sum(group.members, s => s.us || 0))} `,
              el("span", {class: "dim"}, [...new Set(group.members.map(s => s.op))].slice(0, 4).join(", ")));
        }
      });
    }
    const all = open => host.querySelectorAll("details").forEach(details => {
      details.open = open;
    });
    draw("");
    const fused = sum(runs, run => run.steps.filter(step => step.parts).length),
          inside = sum(runs, run => sum(run.steps, step => (step.parts || []).length));
    const yields = sum(runs, run => run.steps.filter(step => step.kind === "yield").length);
    section(
        "graph", "Graph",
        el("p", {},
           `${plural(sum(runs, run => run.steps.length), "step")} in order, by source line; ${
               plural(fused, "fused group")} of ${plural(inside, "node")}; ${plural(yields, "yield")}.`),
        el("div", {class: "controls"},
           el("div", {},
              el("label",
                 { for: "graph-filter"
                 },
                 "Op, node or line"),
              el("input", {
                id: "graph-filter",
                type: "search",
                oninput: event => draw(event.target.value.trim().toLowerCase())
              })),
           el("button", {type: "button", id: "graph-open", onclick: () => all(true)}, "Unfold all"),
           el("button", {type: "button", onclick: () => all(false)}, "Fold all")),
        host);
  }

  function shapes() {
    if (!runs.length) return;
    const {active, moved, stopped, to_host, to_device} = data.shapes, makers = ran.filter(step => step.shape);
    const parts = [el(
        "p", {},
        `${plural(makers.length, "step")} of the run ${
            makers.length === 1 ? "computes" :
                                  "compute"} shapes, sizes or axes; together ${time(sum(makers, step => step.us))}. ` +
            (active ? `Copies to the host in a run: ${to_host[0]} before, ${
                          to_host[1]} after the shape computations moved there; to the device: ${
                          to_device[0]} before, ${to_device[1]} after.` :
                      "All providers are on the host, so no copies come of them."))];
    if (makers.length)
      parts.push(table(
          "Where shape computations run",
          [
            ["op", row => row.name, null, "words"], ["time", row => row.us, row => time(row.us), "number"],
            ["calls", row => row.calls, null, "number"]
          ],
          grouped(makers, step => `${step.op} on ${step.provider}`), 1));
    for (const [title, lines] of [["Moved to the host", moved], ["Stayed on the device", stopped]]) {
      if (lines.length)
        parts.push(
            table(title, [["value", row => row[0], null, "words"], ["why", row => row[1], null, "words"]], lines, 0));
    }
    section("shapes", "Shape computations", ...parts);
  }

  function fallbacks() {
    const rows = data.fallbacks, left = ran.filter(step => step.op === "ATen"),
          late = ran.filter(step => step.kind === "dynamic");
    const parts =
        [el("p", {},
            rows.length ? `${plural(rows.length, "kind")} of calls stayed with PyTorch.` :
                          "Nothing was left to another runtime.")];
    if (data.seconds)
      parts.push(
          el("p", {},
             `Own kernels took ${time(1e6 * data.seconds[0])}, calls left to PyTorch ${time(1e6 * data.seconds[1])}.`));
    if (left.length)
      parts.push(
          el("p", {},
             `${plural(left.length, "step")} of the program ${left.length === 1 ? "is" : "are"} PyTorch's: ${
                 time(sum(left, step => step.us))}.`));
    if (late.length)
      parts.push(el(
          "p", {},
          `The sizes of ${plural(late.length, "step")} show only at run time: ${time(sum(late, step => step.us))}.`));
    if (rows.length)
      parts.push(table(
          "What fell back, and why",
          [
            ["op", row => row.op, null, "words"], ["reason", row => row.reason, null, "words"],
            ["where", row => row.places.length, row => row.places.join(", "), "words"]
          ],
          rows, 2));
    section("fallbacks", "Fell back", ...parts);
  }

  function facts() {
    const list = rows =>
        el("dl", {class: "facts"}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    section(
        "facts", "Build and options", data.options.length ? [el("h3", {}, "Options"), list(data.options)] : null,
        el("h3", {}, "Build and machine"), list(data.facts));
  }

  summary();
  advice();
  losses();
  timeline();
  memory();
  graph();
  shapes();
  fallbacks();
  facts();
})();
