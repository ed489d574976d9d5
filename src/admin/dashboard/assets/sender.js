// One sender: its levels over time, its budgets, refusals, logins and exceptions, and the acts.

import { get, getIfThere } from "./api.js";
import { grantButton, releaseButton, resetButton, revokeButton, suspendButton } from "./acts.js";
import { draw } from "./chart.js";
import { foreign, h } from "./dom.js";
import { ago, limitLink, number, octets, ownerKey, owner as ownerLinks, time, zoneName } from "./format.js";
import { bar, budgetWords, facts, modeMark, refusals, section, table } from "./parts.js";

/** Maximum number of lines of the chart. */
const MAX_LINES = 4;
const COLOURS = ["series-1", "series-2", "series-3", "series-4"];

export function title({ part }) {
    return `Sender ${part}`;
}

export function heading({ part }) {
    const [field, ...name] = part.split("=");
    return [h("span", { class: "field" }, `${field} `), foreign(name.join("="))];
}

export async function load(view) {
    const { part, parameters, abort: { signal } } = view;
    const span = parameters.get("span") === "day" ? "day" : "hour";
    const [field, ...name] = part.split("=");
    const [budgets, history, refused] = await Promise.all([
        get("/v1/budgets", { owner: part }, signal),
        // Samples are ten seconds apart at least, so they are not asked for at each refresh.
        recentHistory(view, span, signal),
        ["user", "client"].includes(field) && !part.includes("/") ? getIfThere("/v1/refusals", { [field]: name.join("="), count: 20 }, signal) : undefined,
    ]);
    return { budgets, history, span, refusals: refused?.refusals ?? budgets.refusals };
}

async function recentHistory({ part, state }, span, signal) {
    if (state.span === span && performance.now() - state.asked < 10_000) return state.history;
    state.history = await getIfThere("/v1/history", { owner: part, span }, signal);
    Object.assign(state, { span, asked: performance.now() });
    return state.history;
}

export function render(view, { budgets, history, span, refusals: refused }) {
    const { suspensions, grants, logins } = budgets;
    return [
        acts(budgets),
        suspensions.map((suspension) => suspended(suspension)),
        budgets.incomplete && h("p", { class: "problem" }, foreign(budgets.incomplete)),
        activity(budgets),
        levels(view, history, span),
        section("Budgets", budgetTable(budgets.budgets)),
        section("Refusals", budgets["refusals-unknown"] ? h("p", { class: "problem" }, foreign(budgets["refusals-unknown"])) : null,
            refusals("Refusals of this sender", refused, "No refusal of this sender is stored."), allRefusals(view, refused)),
        grants.length > 0 && section("Grants", grantTable(grants)),
        budgets.owner.user !== undefined && section("Logins by network",
            budgets["logins-unknown"] ? h("p", { class: "problem" }, foreign(budgets["logins-unknown"])) : null, loginTable(logins)),
    ];
}

export function drawn(_, { history, budgets }, main) {
    const container = main.querySelector("#levels");
    if (!container || !history?.limits.length) return;
    const { series, data } = lines(history, budgets.budgets);
    draw(container, series, data, { format: number, height: 240 });
}

function acts({ owner, suspensions }) {
    const own = suspensions.find((one) => ownerKey(one.owner) === ownerKey(owner));
    return h("p", { class: "buttons", "data-key": "acts" }, own ? releaseButton(own.owner) : suspendButton(owner));
}

function suspended(suspension) {
    return h("div", { class: "problem", "data-key": `suspension ${ownerKey(suspension.owner)}` },
        h("p", {}, h("strong", {}, "Suspended"), " until ", time(suspension.until), ", by ", foreign(suspension.by), ": ", foreign(suspension.reason)));
}

function activity({ activity: row, account }) {
    const groups = account?.groups ?? [];
    return h("div", { "data-key": "activity" }, facts([
        ["Account", account && (account["is-disabled"] ? "disabled" : account["is-known"] === false ? "none" : groups.length > 0 ? foreign(`groups ${groups.join(", ")}`) : "in no group")],
        ["Active since", row && time(row.since)],
        ["Recipients", row && `${number(row["recipients-per-minute"])} / min, ${number(row.recipients)} in all`],
        ["Messages", row && `${number(row["messages-per-minute"])} / min, ${number(row.messages)} in all`],
        ["Refusals", row && `${number(row["refusals-per-minute"])} / min, ${number(row.refusals)} in all`],
        ["Size", row && `${octets(row["octets-per-minute"])} / min, ${octets(row.octets)} in all`],
    ]), !row && h("p", { class: "empty" }, "Not among the active senders of the last hour."));
}

function levels({ part }, history, span) {
    const link = (value, words) => h("a", { href: `#/sender/${encodeURIComponent(part)}?span=${value}`, "aria-current": span === value ? "true" : null }, words);
    const has = history?.limits.length > 0;
    return h("section", { "data-key": "levels" }, h("h2", {}, "Level over time"),
        h("p", { class: "filters" }, link("hour", "Last hour"), " ", link("day", "Last day")),
        has
            ? h("figure", { "data-key": "figure" }, h("div", { id: "levels", class: "chart", "data-chart": true, "data-key": `levels ${span}`, "data-keep": true }),
                h("figcaption", {}, `Solid or dashed: level. Steps of the same colour: what the limit allows. Times in ${zoneName()}.`))
            : h("p", { class: "empty", "data-key": "none" }, "No levels are stored: Weir stores the levels of the senders that send most."));
}

/** Returns the series and the data of the fullest limits, with the present level as the last point. */
function lines({ limits }, budgets) {
    const share = ({ levels: values, allowed }) => Math.max(...values.map((value, n) => (value ?? 0) / (allowed[n] || 1)));
    const chosen = [...limits].sort((a, b) => share(b) - share(a)).slice(0, MAX_LINES);
    const now = Date.now() / 1000;
    const times = [...new Set([...chosen.flatMap((line) => line.times), now])].sort((a, b) => a - b);
    const series = [];
    const data = [times];
    chosen.forEach((line, n) => {
        const present = budgets.find((row) => row.limit === line.limit && row.rate === line.rate && ownerKey(row.owner) === ownerKey(line.owner));
        const at = new Map(line.times.map((time, index) => [time, index]));
        const column = (values, last) => times.map((time) => (time === now ? last ?? undefined : at.has(time) ? values[at.get(time)] : undefined));
        const label = `${line.limit} (${line.rate})`;
        series.push({ label, colour: COLOURS[n], dash: 0 }, { label: `${label} allows`, colour: COLOURS[n], dash: 1, steps: true });
        data.push(column(line.levels, present?.level), column(line.allowed, present?.allowed));
    });
    return { series, data };
}

function budgetTable(rows) {
    return table("Budgets", [
        { title: "limit", heading: true, cell: (row) => [limitLink(row.limit), " ", modeMark(row.mode)] },
        { title: "rate", cell: (row) => [foreign(row.rate), row.grant ? h("span", { class: "mark" }, "grant") : row.override ? overrideMark(row.override) : null] },
        { title: "counted per", cell: (row) => ownerLinks(row.owner) },
        { title: "level", cell: (row) => (row.level !== null && row.level !== undefined && row.allowed >= 0 && row.applies.applies !== "no" ? bar(row.level, row.allowed, `Level of ${row.limit}`) : "–") },
        { title: "in words", kind: "wide", cell: budgetWords },
        { title: "acts", cell: (row) => (row.applies.applies === "no" ? "" : h("span", { class: "buttons" }, grantButton(row), row.level > 0 ? resetButton(row) : null)) },
    ], rows, { key: (row) => `${row.limit} ${row.rate} ${ownerKey(row.owner)}`, empty: "No limit counts this sender." });
}

function overrideMark({ file, line }) {
    return h("span", { class: "mark" }, "override ", foreign(line ? `${file}, line ${line}` : file));
}

function grantTable(rows) {
    return table("Grants of this sender", [
        { title: "limit", heading: true, cell: (row) => limitLink(row.limit) },
        { title: "rate", cell: (row) => foreign(row.rate) },
        { title: "until", cell: (row) => time(row.until) },
        { title: "by, because", kind: "wide", cell: (row) => [foreign(row.by), ": ", foreign(row.reason)] },
        { title: "acts", cell: revokeButton },
    ], rows, { key: (row) => `${row.limit} ${ownerKey(row.owner)}` });
}

function allRefusals({ part }, shown) {
    const [field, ...name] = part.split("=");
    if (shown.length === 0 || !["user", "client"].includes(field)) return null;
    return h("p", {}, h("a", { href: `#/refusals?${field}=${encodeURIComponent(name.join("="))}` }, "All refusals of this sender"));
}

function loginTable(rows) {
    return table("Logins by network", [
        { title: "network", heading: true, cell: (row) => foreign(row.network) },
        { title: "country", cell: (row) => row.country ?? "–" },
        { title: "logins", kind: "number", cell: (row) => number(row.logins) },
        { title: "first", cell: (row) => time(row.first) },
        { title: "last", cell: (row) => ago(row.last) },
        { title: "names in EHLO", kind: "wide", cell: (row) => (row.helo ?? []).map((name, n) => [n > 0 ? ", " : "", foreign(name)]) },
        { title: "with", cell: (row) => foreign([row.mechanism, row.tls ?? "no TLS"].filter(Boolean).join(", ")) },
    ], rows, { key: (row) => row.network, empty: "No login of this user is stored." });
}
