// Limits: each in a sentence, with the senders near it, and the evidence for limits in shadow mode.

import { get, getIfThere } from "./api.js";
import { foreign, h } from "./dom.js";
import { ago, count, limitLink, number, owner, ownerKey } from "./format.js";
import { PAGE_ROWS, bar, budgetWords, facts, hasLevel, modeMark, more, refusals, section, table } from "./parts.js";

const WEEK = 7 * 86_400_000;

export function title({ part }) {
    return part ? `Limit ${part}` : "Limits";
}

export function heading({ part }) {
    return part ? [h("span", { class: "field" }, "limit "), foreign(part)] : "Limits";
}

export async function load(view) {
    const { part, state, abort: { signal } } = view;
    const { limits } = await get("/v1/limits", {}, signal);
    if (!part) return { limits };
    const mine = limits.filter(({ name }) => name === part);
    if (mine.length === 0) throw new Error(`There is no limit ${part}: it was perhaps renamed or removed.`);
    const isWatched = mine.some(({ mode }) => mode !== "enforce");
    const path = `/v1/limits/${encodeURIComponent(part)}`;
    const since = new Date(Date.now() - WEEK).toISOString();
    const isOld = !(performance.now() - state.asked < 30_000);
    if (isWatched && isOld) {
        state.evidence = (await getIfThere(`${path}/evidence`, { since }, signal)) ?? null;
        state.asked = performance.now();
    }
    const [top, refused] = await Promise.all([
        get(`${path}/top`, { rows: (state.rows ?? PAGE_ROWS) + 1 }, signal),
        get("/v1/refusals", { limit: part, count: 10 }, signal),
    ]);
    return { limits: mine, top, refused: refused.refusals, isWatched, evidence: state.evidence };
}

export function render(view, data) {
    return view.part ? renderOne(view, data) : renderAll(data);
}

function renderAll({ limits }) {
    if (limits.length === 0) return h("p", { class: "empty" }, "No limit is configured.");
    return h("ul", { class: "limits", "data-key": "limits" }, limits.map((limit) =>
        h("li", { "data-key": `${limit.name} ${limit.rate}` },
            h("h2", {}, limitLink(limit.name), " ", modeMark(limit.mode)),
            h("p", {}, foreign(limit.sentence)),
            h("p", { class: "relative" }, place(limit), " · ", near(limit)))));
}

function place({ file, line, per }) {
    const key = per.length > 0 ? `per ${per.join(" + ")}` : "one budget for all";
    return [foreign(key), line ? [" · ", h("code", {}, foreign(`${file}:${line}`))] : null];
}

function near({ name, budgets }) {
    if (!budgets) return "counts anew within each message or connection";
    const { "in-memory": all, near: close, full } = budgets;
    return h("a", { href: `#/limits/${encodeURIComponent(name)}` }, `${count(all, "budget")}: ${number(close)} at 80 % or more, ${number(full)} full`);
}

function renderOne(view, { limits, top, refused, isWatched, evidence }) {
    const rows = view.state.rows ?? PAGE_ROWS;
    const total = top["budgets-in-memory"];
    return [
        h("ul", { class: "limits", "data-key": "sentences" }, limits.map((limit) => h("li", { "data-key": limit.rate },
            h("p", {}, foreign(limit.sentence), " ", modeMark(limit.mode)), h("p", { class: "relative" }, place(limit)), actions(limit)))),
        isWatched && evidenceSection(view.part, evidence),
        section("Senders near it", h("p", {}, `${count(total, "budget")} in memory, the fullest first.`), budgetTable(top.budgets.slice(0, rows)),
            more(rows, Math.min(total, 9_999), () => {
                view.state.rows = rows + PAGE_ROWS;
                view.reload();
            })),
        section("Newest refusals", refusals(`Refusals by ${view.part}`, refused, "No refusal by this limit is stored."),
            refused.length > 0 && h("p", {}, h("a", { href: `#/refusals?limit=${encodeURIComponent(view.part)}` }, "All refusals by this limit"))),
    ];
}

function actions({ actions: steps }) {
    if (!steps?.length) return null;
    return facts(steps.map(({ at, does }) => [`At ${at}`, foreign(does)]));
}

function budgetTable(rows) {
    return table("Senders near the limit", [
        { title: "sender", heading: true, cell: (row) => owner(row.owner) },
        { title: "level", cell: (row) => (hasLevel(row) ? bar(row, `Level of ${ownerKey(row.owner)}`) : "–") },
        { title: "in words", kind: "wide", cell: budgetWords },
        { title: "changed", cell: (row) => ago(row.changed) },
    ], rows, { key: (row) => `${row.rate} ${ownerKey(row.owner)}`, empty: "No budget of this limit is in memory." });
}

function evidenceSection(name, evidence) {
    const heading = "Would it be right to enforce it?";
    if (!evidence) {
        return section(heading, h("p", { class: "empty" }, "This Weir stores no refusals that a limit in shadow mode would have made. The log and the metric weir_shadow_refusals_total count them."));
    }
    const owners = evidence.owners ?? [];
    const senders = evidence["owner-count"] ?? owners.length;
    return section(heading, h("p", {}, h("strong", {}, `Would have refused ${count(senders, "sender")} in the last seven days`), senders > 0 ? ":" : "."),
        table(`Senders that ${name} would have refused`, [
            { title: "sender", heading: true, cell: (row) => owner(row.owner) },
            { title: "refusals", kind: "number", cell: (row) => number(row.refusals ?? row.times) },
            { title: "first", cell: (row) => ago(row.first) },
            { title: "last", cell: (row) => ago(row.last) },
        ], owners, { key: (row) => ownerKey(row.owner), empty: "None." }));
}
