// Draws the page's curves again with uPlot: values under the pointer or the arrow keys, zoom, runs on and off.
// Without this script the page shows the same curves as pictures, and its switches work by style sheet alone.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("curves").textContent);
  const DASHES = [[], [10, 4], [2, 4], [12, 4, 3, 4]];
  const COLOURS = 7;
  const drawn = [];
  const root = getComputedStyle(document.documentElement);
  const colour = (name) => root.getPropertyValue("--" + name).trim();
  const dash = (run) => DASHES[(run + Math.floor(run / COLOURS)) % DASHES.length];
  const isShown = (run) => {
    const box = document.getElementById("show" + run);
    return box === null || box.checked;
  };
  const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
  const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 8 });
  const FONT = "12px system-ui, sans-serif";
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = FONT;
  const widest = (texts) => Math.max(0, ...texts.map((text) => ruler.measureText(text ?? "").width));

  // The rule of ticks.py: one unit for an axis, and the fewest decimals that tell each tick to a hundredth of a step.
  function tickTexts(values) {
    const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
    const largest = Math.max(0, ...sorted.map(Math.abs));
    const step = sorted.slice(1).reduce((least, value, i) => Math.min(least, value - sorted[i] || least), largest);
    const [scale, unit] = scaleOf(largest);
    let decimals = 0;
    const isOff = (value) => Math.abs(Number((value / scale).toFixed(decimals)) * scale - value) > step / 100;
    while (decimals < 15 && sorted.some(isOff)) decimals++;
    return values.map((value) => {
      const text = value === null ? "" : (value / scale).toFixed(decimals);
      return Number(text) === 0 && text !== "" ? "0" : text && text + unit;
    });
  }

  function scaleOf(largest) {
    if (largest === 0 || (largest >= 1e-3 && largest < 1e12))
      return [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([scale]) => largest >= scale) ?? [1, ""];
    const exponent = Math.max(-300, Math.floor(Math.log10(largest)));
    return [10 ** exponent, "e" + exponent];
  }

  // Ticks so far apart that their texts do not touch; the finest steps between them have two digits, such as 2.5.
  const space = (least) => (_u, axis, low, high) => {
    if (axis !== 0 || !(high > low)) return least;
    const step = 2.5 * 10 ** Math.floor(Math.log10((high - low) / 8)), first = Math.round(low / step);
    return Math.max(least, widest(tickTexts(Array.from({ length: 9 }, (_, i) => (first + i) * step))) + 20);
  };

  // Runs were measured at different places: the value of a curve is that of its own nearest point.
  function nearest(u, series, index) {
    const xs = u.data[0], ys = u.data[series];
    if (index === null || index === undefined || ys[index] !== null) return index;
    let left = index, right = index;
    while (left >= 0 && ys[left] == null) left--;
    while (right < ys.length && ys[right] == null) right++;
    if (left < 0) return right < ys.length ? right : null;
    if (right >= ys.length) return left;
    return xs[index] - xs[left] <= xs[right] - xs[index] ? left : right;
  }

  function tell(chart, u, readout) {
    readout.replaceChildren();
    chart.series.forEach((series, place) => {
      const index = u.cursor.idxs ? u.cursor.idxs[place + 1] : null;
      if (index == null || !u.series[place + 1].show) return;
      const item = document.createElement("span"), dot = document.createElement("i");
      dot.style.background = colour("c" + (series.run % COLOURS));
      const y = number.format(u.data[place + 1][index]), x = exact.format(u.data[0][index]);
      item.append(dot, series.name + " " + y + " at " + x);
      readout.append(item);
    });
    if (!readout.childElementCount) readout.textContent = "Point at a curve, or use the arrow keys; drag to enlarge, Escape to return.";
  }

  function options(chart, width, readout) {
    const axis = {
      stroke: colour("ink"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("line") },
      font: FONT, labelFont: FONT, labelSize: 22, labelGap: 2, values: (_, ticks) => tickTexts(ticks),
    };
    const room = (_, texts) => Math.ceil(widest(texts ?? [])) + 20;
    return {
      width, height: Math.round(Math.min(300, Math.max(200, width * 0.6))),
      legend: { show: false },
      scales: { x: { time: false } },
      padding: [null, (u) => Math.ceil(widest(u.axes[0]._values ?? []) / 2) + 4, null, null],
      cursor: { dataIdx: nearest, sync: { key: chart.x }, points: { size: 8 } },
      axes: [
        { ...axis, label: chart.x, size: 36, space: space(50) },
        { ...axis, label: chart.y || undefined, size: room, space: space(30) },
      ],
      series: [{}, ...chart.series.map((series) => ({
        label: series.name, show: isShown(series.run), stroke: colour("c" + (series.run % COLOURS)), width: 2,
        dash: dash(series.run), spanGaps: true, points: { show: series.x.length <= 40, size: 5 },
      }))],
      hooks: { setCursor: [(u) => tell(chart, u, readout)] },
    };
  }

  function steer(event, u) {
    const last = u.data[0].length - 1;
    const at = u.cursor.idx ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") u.setData(u.data);
    else if (step) {
      const next = Math.min(last, Math.max(0, at + step));
      u.setCursor({ left: u.valToPos(u.data[0][next], "x"), top: u.over.clientHeight / 2 });
      event.preventDefault();
    }
  }

  function draw(figure, chart) {
    const plot = document.createElement("div"), readout = document.createElement("div");
    plot.className = "plot";
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", figure.querySelector("h3").textContent + ". Arrow keys tell the values.");
    readout.className = "readout";
    readout.setAttribute("aria-live", "polite");
    figure.querySelector("svg.still").after(plot, readout);
    figure.classList.add("live");
    const data = uPlot.join(chart.series.map((series) => [series.x, series.y]));
    let u = null;
    const again = () => {
      if (u !== null) u.destroy();
      u = new uPlot(options(chart, plot.clientWidth, readout), data, plot);
      tell(chart, u, readout);
    };
    plot.addEventListener("keydown", (event) => steer(event, u));
    new ResizeObserver(() => {
      if (u !== null && Math.abs(u.width - plot.clientWidth) > 1) again();
    }).observe(plot);
    again();
    drawn.push({ again, toggle: () => {
      chart.series.forEach((series, place) => u.setSeries(place + 1, { show: isShown(series.run) }));
    } });
  }

  document.querySelectorAll("figure[data-curves]").forEach((figure) => draw(figure, charts[figure.dataset.curves]));
  document.querySelectorAll("input[name=theme]").forEach((box) =>
    box.addEventListener("change", () => drawn.forEach((each) => each.again())));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((each) => each.again()));
  document.querySelectorAll(".runs input").forEach((box) =>
    box.addEventListener("change", () => drawn.forEach((each) => each.toggle())));
})();
