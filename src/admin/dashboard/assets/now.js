// Now: what needs the administrator, what flows, who sends most, what was refused last.

import { announce } from "./acts.js";
import { get, getIfAvailable } from "./api.js";
import { draw } from "./chart.js";
import { foreign, h } from "./dom.js";
import { count, duration, number, time } from "./format.js";
import { fullest } from "./levels.js";
import { refusals, section, table } from "./parts.js";
import { senderTable } from "./senders.js";

const TOP = 5;
const NEWEST = 6;

const SERIES = [
    { label: "messages", colour: "series-1" },
    { label: "refusals", colour: "series-2", dash: 1 },
    { label: "delays", colour: "series-3", dash: 2 },
];

export function title() {
    return "Now";
}

export async function load({ abort: { signal } }) {
    const [status, activity, sending, refused, newest, levels] = await Promise.all([
        get("/v1/status", {}, signal),
        get("/v1/activity", { minutes: 60 }, signal),
        get("/v1/top", { by: "recipients", rows: TOP }, signal),
        get("/v1/top", { by: "refusals", rows: TOP }, signal),
        getIfAvailable("/v1/refusals", { count: NEWEST }, signal),
        fullest(signal),
    ]);
    return { status, minutes: activity.minutes, senders: mostUrgent([...sending.senders, ...refused.senders]), newest, levels };
}

/** Returns the senders with the most recipients and refusals together: a flood that is refused has few recipients. */
function mostUrgent(senders) {
    const weight = (row) => row["recipients-per-minute"] + row["refusals-per-minute"];
    const once = new Map(senders.map((row) => [`${row.kind}=${row.name}`, row]));
    return [...once.values()].sort((a, b) => weight(b) - weight(a)).slice(0, TOP);
}

export function render(_, data) {
    const { status, senders, newest, levels } = data;
    return [
        health(status),
        figures(data),
        h("div", { class: "columns", "data-key": "columns" },
            section("Top senders", senderTable("Top senders now", senders, levels), h("p", {}, h("a", { href: "#/senders" }, "All top senders"))),
            h("section", { "data-key": "chart" }, h("h2", {}, "Last hour"),
                h("figure", {}, h("div", { class: "chart", "data-chart": true, "data-key": "hour", "data-keep": true }), h("figcaption", {}, chartWords(data)))),
            h("div", { "data-key": "side" }, upstreams(status), service(status)),
            section("Newest refusals", refusals("Newest refusals", newest, "No refusal is stored."), h("p", {}, h("a", { href: "#/refusals" }, "All refusals")))),
    ];
}

export function drawn(view, { minutes, status }, main) {
    announceNew(status.problems, view.state.problems ?? status.problems);
    view.state.problems = status.problems;
    const columns = ["messages", "refusals", "delays"].map((name) => minutes.map((minute) => minute[name]));
    draw(main.querySelector(".chart"), SERIES, [minutes.map((minute) => new Date(minute.time) / 1000), ...columns], { format: number });
}

/** Tells screen readers of new problems. The message of a problem can change while the problem lasts. */
function announceNew(problems, former) {
    const times = (list, wanted) => list.filter(({ code }) => code === wanted).length;
    const fresh = problems.filter(({ code }) => times(problems, code) > times(former, code));
    if (fresh.length > 0) announce(`New problem: ${fresh.map(({ message }) => message).join("; ")}`);
}

function chartWords({ minutes }) {
    const sum = (name) => number(minutes.reduce((total, minute) => total + minute[name], 0));
    return `Per minute. In this hour: ${sum("messages")} messages, ${sum("refusals")} refusals, ${sum("delays")} delays. The last minute is not complete.`;
}

function health({ problems, version, "uptime-seconds": uptime }) {
    if (problems.length === 0) {
        return h("p", { class: "good", "data-key": "health" }, h("span", { "aria-hidden": "true" }, "✓ "), `No problems. Weir ${version} has run for ${duration(uptime)}.`);
    }
    return h("section", { class: "problem", "data-key": "health" },
        h("h2", {}, h("span", { "aria-hidden": "true" }, "⚠ "), `${count(problems.length, "problem")}: ${problems.length === 1 ? "this needs" : "these need"} you`),
        h("ul", {}, problems.map(({ message, remedy }) => h("li", {}, h("strong", {}, foreign(message)), h("br"), foreign(remedy)))));
}

function figures({ status, minutes }) {
    // The last minute is not complete, and perhaps Weir has just begun.
    const recent = minutes.slice(-5);
    const last = new Date(recent.at(-1).time);
    const seconds = Math.min(240 + Math.max(0, (new Date(status.time) - last) / 1000), status["uptime-seconds"]);
    const rate = (name) => number(recent.reduce((total, minute) => total + minute[name], 0) / Math.max(1, seconds / 60));
    const sessions = status.listeners.reduce((sum, listener) => sum + listener.sessions, 0);
    const figure = (value, words, href) => h("li", {}, h("a", { href }, h("strong", {}, value), h("span", {}, words)));
    return h("ul", { class: "figures", "data-key": "figures", "aria-label": "Figures: averages of the last five minutes" },
        figure(rate("messages"), "messages / min", "#/senders?by=messages"),
        figure(rate("recipients"), "recipients / min", "#/senders?by=recipients"),
        figure(rate("refusals"), "refusals / min", "#/refusals"),
        figure(rate("delays"), "delays / min", "#/limits"),
        figure(number(sessions), `of ${number(status["max-sessions"])} sessions`, "#/sessions"),
        figure(number(status.limits), "limits", "#/limits"),
        figure(number(status.suspensions), "suspensions", "#/exceptions"),
        figure(number(status.grants), "grants", "#/exceptions"));
}

function upstreams({ upstreams: rows }) {
    const health = ({ enabled, up }) => {
        if (!enabled) return "disabled";
        return up ? [h("span", { "aria-hidden": "true" }, "✓ "), "up"] : h("span", { class: "bad" }, h("span", { "aria-hidden": "true" }, "✗ "), "down");
    };
    return section("Upstreams", table("Upstreams", [
        { title: "name", heading: true, cell: ({ name }) => foreign(name) },
        { title: "health", cell: health },
        { title: "address", cell: ({ host, port }) => foreign(`${host}:${port}`) },
        { title: "priority", kind: "number", cell: ({ priority }) => priority },
        { title: "mail", cell: (row) => (row["only-routed"] ? "only what limits route to it" : "all") },
    ], rows, { key: ({ name }) => name, empty: "No upstream is configured." }));
}

function service({ problems, listeners, certificates }) {
    const state = problems.find(({ code }) => code === "state-degraded");
    return section("Service",
        h("dl", { class: "facts" },
            h("div", {}, h("dt", {}, "State file"), h("dd", {}, state ? foreign(state.message) : "good")),
            listeners.map(({ name, address, sessions }) => h("div", {}, h("dt", {}, "Listener ", foreign(name)), h("dd", {}, `${address}, `, h("a", { href: "#/sessions" }, count(sessions, "session"))))),
            certificates.map(({ file, expires }) => h("div", {}, h("dt", {}, "Certificate ", foreign(file)), h("dd", {}, "expires ", time(expires))))));
}
