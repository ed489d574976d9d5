// One sender: its levels over time, its budgets, refusals, logins and exceptions, and the acts.

import { get, getIfAvailable } from "./api.js";
import { grantButton, releaseButton, resetButton, revokeButton, suspendButton } from "./acts.js";
import { draw } from "./chart.js";
import { foreign, h, visible } from "./dom.js";
import { actor, ago, end, limitLink, number, octets, owner as ownerLinks, ownerKey, time, zoneName } from "./format.js";
import { bar, budgetWords, facts, hasLevel, leniency, modeMark, refusals, section, table, unreadable } from "./parts.js";

/** Colours of the lines of the chart: one for each limit that is shown. */
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
    const isListed = ["user", "client"].includes(field) && !part.includes("/");
    const [budgets, history, listed] = await Promise.all([
        get("/v1/budgets", { owner: part }, signal),
        // Samples are ten seconds apart at least, so they are not asked for at each refresh.
        recentHistory(view, span, signal),
        isListed && getIfAvailable("/v1/refusals", { [field]: name.join("="), count: 10 }, signal),
    ]);
    const refused = listed || { refusals: budgets.refusals, unavailable: budgets["refusals-unknown"] };
    return { budgets, history, span, refused };
}

async function recentHistory({ part, state }, span, signal) {
    if (state.span === span && performance.now() - state.asked < 10_000) return state.history;
    state.history = await get("/v1/history", { owner: part, span }, signal);
    Object.assign(state, { span, asked: performance.now() });
    return state.history;
}

export function render(view, { budgets, history, span, refused }) {
    const { suspensions, grants, logins } = budgets;
    return [
        acts(budgets),
        suspensions.map((suspension) => suspended(suspension)),
        budgets.incomplete && unreadable(budgets.incomplete),
        activity(budgets),
        levels(view, history, span),
        budgets["suspicion-unknown"] ? section("Suspicion", unreadable(budgets["suspicion-unknown"])) : budgets.suspicion && section("Suspicion", ...suspicion(budgets.suspicion)),
        section("Budgets", budgetTable(budgets.budgets)),
        section("Refusals", refusals("Refusals of this sender", refused, "No refusal of this sender is stored.", { ofOneSender: true }), allRefusals(view, refused)),
        grants.length > 0 && section("Grants", grantTable(grants)),
        budgets.owner.user !== undefined && section("Logins by network",
            budgets["logins-unknown"] ? unreadable(budgets["logins-unknown"]) : loginTable(logins)),
    ];
}

export function drawn(_, { history, budgets }, main) {
    const container = main.querySelector("#levels");
    if (!container || history.limits.length === 0) return;
    const { series, data } = lines(history, budgets.budgets);
    draw(container, series, data, { format: (value) => `${number(value)} %`, height: 240 });
}

function acts({ owner, suspensions }) {
    const own = suspensions.find((one) => ownerKey(one.owner) === ownerKey(owner));
    return h("p", { class: "buttons", "data-key": "acts" }, own ? releaseButton(own.owner) : suspendButton(owner));
}

function suspended(suspension) {
    return h("div", { class: "note", "data-key": `suspension ${ownerKey(suspension.owner)}` },
        h("p", {}, h("strong", {}, suspension["known-to"] ? "Locked" : "Suspended"), " until ", end(suspension.until), ", by ", actor(suspension.by), ": ", foreign(suspension.reason), leniency(suspension)));
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
    const has = history.limits.length > 0;
    return h("section", { "data-key": "levels" }, h("h2", {}, "Level over time"),
        h("p", { class: "filters" }, link("hour", "Last hour"), " ", link("day", "Last day")),
        has
            ? h("figure", { "data-key": "figure" }, h("div", { id: "levels", class: "chart", "data-chart": true, "data-key": `levels ${span}`, "data-keep": true }),
                h("figcaption", {}, `Level in per cent of what each limit allows, of the fullest limits. Times in ${zoneName()}.`))
            : h("p", { class: "empty", "data-key": "none" }, "No levels are stored: Weir stores the levels of the senders that send most."));
}

/**
 * Returns the series and the data of the fullest limits: levels in per cent of what the limit allowed at that time, so
 * that limits of all sizes are comparable. The present level is the last point.
 */
function lines({ limits }, budgets) {
    const percent = (level, allowed) => (typeof level === "number" && allowed > 0 ? (100 * level) / allowed : null);
    const rows = limits.map((line) => ({ ...line, values: line.levels.map((level, n) => percent(level, line.allowed[n])) }));
    const highest = ({ values }) => values.reduce((high, value) => Math.max(high, value ?? 0), 0);
    const chosen = rows.sort((a, b) => highest(b) - highest(a)).slice(0, COLOURS.length);
    const now = Date.now() / 1000;
    const times = [...new Set(chosen.flatMap((line) => line.times)), now].sort((a, b) => a - b);
    const column = (line) => {
        const present = budgets.find((row) => row.limit === line.limit && (row.rate === line.rate || row.grant || row.override));
        const at = new Map(line.times.map((time, index) => [time, line.values[index]]));
        return times.map((time) => (time === now ? percent(present?.level, present?.allowed) ?? undefined : at.get(time)));
    };
    const series = chosen.map(({ limit, rate }, n) => ({ label: visible(`${limit} (${rate})`), colour: COLOURS[n], dash: n }));
    return { series: [...series, { label: "full", colour: "muted", dash: 4 }], data: [times, ...chosen.map(column), times.map(() => 100)] };
}

function budgetTable(rows) {
    return table("Budgets", [
        { title: "limit", heading: true, cell: (row) => [limitLink(row.limit), " ", modeMark(row.mode)] },
        { title: "rate", cell: (row) => [foreign(row.rate), row.grant ? h("span", { class: "mark" }, "grant") : row.override ? overrideMark(row.override) : null] },
        { title: "counted per", cell: (row) => ownerLinks(row.owner) },
        { title: "level", cell: (row) => (hasLevel(row) ? bar(row, `Level of ${row.limit}`) : "–") },
        { title: "in words", kind: "wide", cell: budgetWords },
        { title: "acts", cell: (row) => (row.applies.applies === "no" ? "" : h("span", { class: "buttons" }, grantButton(row), row.level > 0 ? resetButton(row) : null)) },
    ], rows, { key: (row) => `${row.limit} ${row.rate} ${ownerKey(row.owner)}`, empty: "No limit counts this sender." });
}

/** The suspicion score, its class, and the signs that made it. */
function suspicion({ points, class: name, mode, watched, locked, signs }) {
    const classes = `watched from ${points1(watched)}, locked from ${points1(locked)}`;
    const state = mode !== "enforce" ? `no class, because [suspicion] has mode = "${mode}" (${classes})` : `${name ?? "in no class"} (${classes})`;
    return [
        h("p", { class: name ? "note" : null, "data-key": "score" }, h("strong", {}, `Score ${points1(points)}`), `: ${state}.`),
        signs.length > 0 && table("Signs of suspicion", [
            { title: "sign", heading: true, cell: (sign) => [limitLink(sign.limit), " ", modeMark(sign.mode)] },
            { title: "points", kind: "number", cell: (sign) => `${points1(sign.points)} of ${points1(sign.most)}` },
            { title: "last raised", cell: (sign) => ago(sign.raised) },
            { title: "half left after", kind: "number", cell: (sign) => `${number(sign["half-life-seconds"] / 3600)} h` },
            { title: "level now", kind: "wide", cell: (sign) => (sign.level === null ? "–" : [`${number(sign.level)} of ${sign.allowed === null ? "any number" : number(sign.allowed)} `, foreign(sign.unit)]) },
        ], signs, { key: (sign) => sign.limit }),
    ];
}

/** Returns points with at most one decimal. */
function points1(points) {
    return number(Math.round(points * 10) / 10);
}

function overrideMark({ file, line }) {
    return h("span", { class: "mark" }, "override ", foreign(line ? `${file}, line ${line}` : file));
}

function grantTable(rows) {
    return table("Grants of this sender", [
        { title: "limit", heading: true, cell: (row) => limitLink(row.limit) },
        { title: "rate", cell: (row) => foreign(row.rate) },
        { title: "until", cell: (row) => time(row.until) },
        { title: "by, because", kind: "wide", cell: (row) => [actor(row.by), ": ", foreign(row.reason)] },
        { title: "acts", cell: revokeButton },
    ], rows, { key: (row) => `${row.limit} ${ownerKey(row.owner)}` });
}

function allRefusals({ part }, { refusals: shown }) {
    const [field, ...name] = part.split("=");
    if (!shown?.length || !["user", "client"].includes(field)) return null;
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
