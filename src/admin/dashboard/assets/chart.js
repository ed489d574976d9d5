// Charts over time, drawn by uPlot (a classic script, which defines `uPlot`).

/* global uPlot */

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [3, 6]];
/** Borders of the marks in the legend that go with the dashes. */
const BORDERS = ["solid", "dashed", "dotted", "dashed", "dotted"];

/** Minimum time from the left to the right of a chart, in seconds. */
const MIN_SPAN = 600;

/**
 * Draws lines into a container that `patch` keeps, or updates them. `series` is an array of
 * `{label, colour, dash}`: the colour is the name of a CSS variable, `dash` is an index of a dash pattern.
 * `data` has an array of Unix seconds, then an array of values for each series.
 */
export function draw(container, series, data, { height = 220, format = String } = {}) {
    const shape = JSON.stringify([series, scheme()]);
    container.redraw = () => draw(container, series, data, { height, format });
    if (container.chart && container.shape === shape) return void container.chart.setData(data);
    container.chart?.destroy();
    container.replaceChildren();
    container.shape = shape;
    container.chart = new uPlot(options(container, series, height, format), data, container);
    if (!container.observer) {
        container.observer = new ResizeObserver(() => {
            const width = container.clientWidth;
            if (width > 0 && container.chart?.width !== width) container.chart?.setSize({ width, height });
        });
        container.observer.observe(container);
    }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => {
    for (const container of document.querySelectorAll("[data-chart]")) container.redraw?.();
});

function scheme() {
    return dark.matches ? "dark" : "light";
}

function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function options(container, series, height, format) {
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    const line = ({ label, colour: name, dash = 0 }) => ({
        label,
        stroke: colour(name),
        width: 2,
        dash: DASHES[dash % DASHES.length],
        points: { show: false },
        spanGaps: false,
        value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
    });
    return {
        width: Math.max(container.clientWidth, 100),
        height,
        padding: [8, 24, 0, 0],
        cursor: { points: { show: true }, drag: { x: false, y: false } },
        legend: { live: true, markers: { width: 2, dash: (_, n) => BORDERS[series[n - 1]?.dash ?? 0] } },
        scales: { x: { range: (_, low, high) => [Math.min(low, high - MIN_SPAN), high] }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? 1.1 * high : 1] } },
        axes: [
            { ...axis, space: 70, values: [
                [86400, "{D} {MMM}", null, null, null, null, null, null, 1],
                [3600, "{HH}:{mm}", null, null, null, null, null, null, 1],
                [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
                [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
            ] },
            { ...axis, size: 52, values: (_, values) => values.map((value) => format(value)) },
        ],
        series: [{ label: "time", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" }, ...series.map(line)],
    };
}
