// Stacked shares over time: training busy, filled bubble, unfilled bubble; gaps are no training.
/* global Plotly */
import { clock, day, length } from "./format.js";

const PARTS = [
  ["busy_us", "Training busy", "--busy"],
  ["filled_us", "Bubble, filled", "--filled"],
  ["unfilled_us", "Bubble, unfilled", "--unfilled"],
];
const drawn = new Map(); // element -> arguments, to draw again when the colour scheme changes

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const local = (atUs) => `${day(atUs)} ${clock(atUs)}`;

function traces(series, stepUs, names) {
  const walls = series.began_at_us.map((_, at) => PARTS.reduce((sum, [name]) => sum + series[name][at], 0));
  const x = series.began_at_us.map(local);
  return PARTS.map(([name, title, property]) => ({
    type: "bar",
    name: names?.[name] || title,
    x,
    y: series[name].map((value, at) => (walls[at] > 0 ? (100 * value) / walls[at] : null)),
    customdata: series[name].map((value) => length(value)),
    offset: 0,
    width: stepUs / 1000,
    marker: { color: colour(property), line: { width: 0 } },
    hovertemplate: `${names?.[name] || title} %{y:.1f} % (%{customdata})<extra></extra>`,
  }));
}

function layout(sinceUs, untilUs, large, wide) {
  const text = colour("--muted");
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: text };
  return {
    barmode: "stack",
    bargap: 0,
    showlegend: false,
    font,
    margin: { l: 34, r: 6, t: 10, b: 24 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { ...font, color: colour("--text") } },
    dragmode: false,
    uirevision: "same",
    xaxis: {
      type: "date",
      range: [local(sinceUs), local(untilUs)],
      fixedrange: true,
      showgrid: false,
      linecolor: colour("--line"),
      hoverformat: "%Y-%m-%d %H:%M:%S",
      nticks: wide ? 10 : 5,
      tickangle: 0,
      tickformatstops: [
        { dtickrange: [null, 60000], value: "%H:%M:%S" },
        { dtickrange: [60000, 86400000], value: "%H:%M" },
        { dtickrange: [86400000, null], value: "%b %d" },
      ],
    },
    yaxis: {
      range: [0, 100],
      fixedrange: true,
      tickvals: large ? [0, 25, 50, 75, 100] : [0, 50, 100],
      gridcolor: colour("--line"),
      zeroline: false,
    },
  };
}

// Draw a series into an element; the second time only what changed.
export function draw(element, series, options) {
  const { sinceUs, untilUs, stepUs, label, empty, names } = options;
  const large = element.classList.contains("chart-large");
  if (!series.began_at_us.length) {
    if (drawn.delete(element)) Plotly.purge(element);
    element.classList.add("chart-empty");
    element.textContent = empty;
    element.removeAttribute("role");
    return;
  }
  if (element.classList.contains("chart-empty")) {
    element.classList.remove("chart-empty");
    element.textContent = "";
  }
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  drawn.set(element, [series, options]);
  const wide = element.clientWidth > 700;
  Plotly.react(element, traces(series, stepUs, names), layout(sinceUs, untilUs, large, wide), { displayModeBar: false, responsive: true });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [element, [series, options]] of drawn) draw(element, series, options);
});
