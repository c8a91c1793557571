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
  const tick = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

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
      const y = number.format(u.data[place + 1][index]), x = tick.format(u.data[0][index]);
      item.append(dot, series.name + " " + y + " at " + x);
      readout.append(item);
    });
    if (!readout.childElementCount) readout.textContent = "Point at a curve, or use the arrow keys; drag to enlarge, Escape to return.";
  }

  function options(chart, width, readout) {
    const axis = { stroke: colour("ink"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("line") } };
    const font = "12px system-ui, sans-serif";
    const format = (_, values) => values.map((value) => tick.format(value));
    return {
      width, height: Math.round(Math.min(300, Math.max(200, width * 0.6))),
      legend: { show: false },
      scales: { x: { time: false } },
      cursor: { dataIdx: nearest, sync: { key: chart.x }, points: { size: 8 } },
      axes: [
        { ...axis, font, labelFont: font, label: chart.x, labelSize: 20, size: 32, values: format },
        { ...axis, font, labelFont: font, label: chart.y || undefined, labelSize: 20, size: 52, values: format },
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
