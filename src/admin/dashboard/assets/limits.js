// Limits: each in a sentence, with the senders near it, and the evidence for limits in shadow mode.

import { get, getIfAvailable } from "./api.js";
import { foreign, h, lines } from "./dom.js";
import { ago, count, fieldLink, limitLink, number, owner, ownerKey, time } from "./format.js";
import { PAGE_ROWS, bar, budgetWords, facts, hasLevel, modeMark, more, refusals, section, table, unreadable } from "./parts.js";

const WEEK = 7 * 86_400_000;

/** Maximum number of senders in the evidence. */
const EVIDENCE_SENDERS = 1_000;

export function title({ part }) {
    return part ? `Limit ${part}` : "Limits";
}

export function heading({ part }) {
    return part ? [h("span", { class: "field" }, "limit "), foreign(part)] : "Limits";
}

export async function load(view) {
    const { part, state, abort: { signal } } = view;
    const { limits, file } = await get("/v1/limits", {}, signal);
    if (!part) return { limits, file };
    const limit = limits.find(({ name }) => name === part);
    if (!limit) return { gone: true };
    const isWatched = limit.mode !== "enforce";
    const path = `/v1/limits/${encodeURIComponent(part)}`;
    const since = new Date(Date.now() - WEEK).toISOString();
    const isOld = !(performance.now() - state.asked < 30_000);
    if (isWatched && isOld) {
        state.evidence = await getIfAvailable(`${path}/evidence`, { since, count: EVIDENCE_SENDERS }, signal);
        state.asked = performance.now();
    }
    const [top, refused] = await Promise.all([
        get(`${path}/top`, { rows: (state.rows ?? PAGE_ROWS) + 1 }, signal),
        getIfAvailable("/v1/refusals", { limit: part, count: 10 }, signal),
    ]);
    return { limit, file, top, refused, isWatched, evidence: state.evidence };
}

export function render(view, data) {
    if (data.gone) return h("p", { class: "empty" }, "There is no such limit now: it was perhaps renamed or removed.");
    return view.part ? renderOne(view, data) : renderAll(data);
}

function renderAll({ limits, file }) {
    if (limits.length === 0) return h("p", { class: "empty" }, "No limit is configured.");
    return h("ul", { class: "limits", "data-key": "limits" }, limits.map((limit) =>
        h("li", { "data-key": limit.name },
            h("h2", {}, limitLink(limit.name), " ", modeMark(limit.mode)),
            h("p", {}, sentence(limit)),
            h("p", { class: "relative" }, place(limit, file), " · ", near(limit)))));
}

function sentence({ sentence: words }) {
    return foreign(words.charAt(0).toUpperCase() + words.slice(1));
}

function place({ line, per }, file) {
    const key = per.length > 0 ? `per ${per.join(" + ")}` : "one budget for all";
    return [foreign(key), line ? [" · ", h("code", {}, foreign(`${file}:${line}`))] : null];
}

function near({ name, budgets }) {
    if (!budgets) return "counts anew within each message or connection";
    const { "in-memory": all, near: close, full } = budgets;
    return h("a", { href: `#/limits/${encodeURIComponent(name)}` }, typeof close === "number" ? `${count(all, "budget")}: ${number(close)} at 80 % or more, ${number(full)} full` : count(all, "budget"));
}

function renderOne(view, { limit, file, top, refused, isWatched, evidence }) {
    const rows = view.state.rows ?? PAGE_ROWS;
    const total = top["budgets-in-memory"];
    return [
        h("section", { "data-key": "sentence" }, h("h2", {}, "In words"),
            h("p", {}, sentence(limit)), h("p", { class: "relative" }, place(limit, file)), actions(limit),
            limit.details?.length > 0 && h("details", {}, h("summary", {}, "How much gets through"), lines(limit.details.join("\n"), "How much gets through"))),
        isWatched && evidenceSection(view.part, evidence),
        section("Senders near it", h("p", {}, `${count(total, "budget")} in memory, the fullest first.`), budgetTable(top.budgets.slice(0, rows)),
            more(rows, Math.min(total, 9_999), () => {
                view.state.rows = rows + PAGE_ROWS;
                view.reload();
            })),
        section("Newest refusals", refusals(`Refusals by ${view.part}`, refused, "No refusal by this limit is stored."),
            refused.refusals?.length > 0 && h("p", {}, h("a", { href: `#/refusals?limit=${encodeURIComponent(view.part)}` }, "All refusals by this limit"))),
    ];
}

function actions({ actions: steps }) {
    if (!steps?.length) return null;
    return facts(steps.map(({ at, action, value }) => [`At ${Math.round(100 * at)} %`, foreign(value ? `${action} ${value}` : action)]));
}

function budgetTable(rows) {
    return table("Senders near the limit", [
        { title: "sender", heading: true, cell: (row) => owner(row.owner) },
        { title: "level", cell: (row) => (hasLevel(row) ? bar(row, `Level of ${ownerKey(row.owner)}`) : "–") },
        { title: "in words", kind: "wide", cell: budgetWords },
        { title: "changed", cell: (row) => ago(row.changed) },
    ], rows, { key: (row) => `${row.rate} ${ownerKey(row.owner)}`, empty: "No budget of this limit is in memory." });
}

/** Returns the evidence of a limit that is not enforced: the senders that it would have refused. */
function evidenceSection(name, { unavailable, senders, "more-senders": left, "other-senders": unknown, "would-refuse": events, "oldest-record": oldest, since }) {
    const heading = "Would it be right to enforce it?";
    if (unavailable) return section(heading, unreadable(unavailable));
    // A limit that was enforced earlier this week has refused senders, too.
    const rows = senders.filter((row) => row["would-refuse"] > 0);
    const atLeast = left > 0 ? "at least " : "";
    const flood = unknown?.["would-refuse"] > 0 && `, of these ${count(unknown["would-refuse"], "time")} in a flood whose senders are not recorded`;
    const words = events > 0 ? [`Would have refused ${atLeast}${count(rows.length, "sender")} this week, ${count(events, "time")}`, flood, "."] : "Would have refused none this week.";
    return section(heading,
        h("p", {}, h("strong", {}, words), oldest && new Date(oldest) > new Date(since) ? [" The records begin ", time(oldest), "."] : null),
        rows.length > 0 && table(`Senders that ${name} would have refused`, [
            { title: "sender", heading: true, cell: ({ sender }) => fieldLink(sender) },
            { title: "would have been refused", kind: "number", cell: (row) => count(row["would-refuse"], "time") },
            { title: "first", cell: ({ first }) => ago(first) },
            { title: "last", cell: ({ last }) => ago(last) },
        ], rows.slice(0, PAGE_ROWS), { key: ({ sender }) => sender }),
        rows.length > PAGE_ROWS && h("p", {}, `And ${count(rows.length - PAGE_ROWS, "sender")} more.`),
        events > 0 && h("p", {}, h("a", { href: `#/refusals?limit=${encodeURIComponent(name)}&shadow=true` }, "Each of these events")));
}
