// Levels of senders against their limits, for lists of senders: the fullest budgets of each limit.

import { get } from "./api.js";
import { hasLevel, share } from "./parts.js";

/** Budgets asked of each limit. A sender that is not among them is less full than they are. */
const BUDGETS = 200;
/** Time for which an answer is good, in milliseconds. */
const AGE = 4_000;
/** Limits that are asked: those with the fullest budgets. */
const MAX_LIMITS = 12;

let cached = { at: -Infinity };

/** Returns a map from `user=NAME` or `client=NETWORK` to the fullest budget of this sender. */
export async function fullest(signal) {
    if (performance.now() - cached.at < AGE) return cached.levels;
    const { limits } = await get("/v1/limits", {}, signal);
    const counted = limits.filter(({ per, budgets }) => budgets && per.some((field) => /^(user|client)\b/.test(field)));
    // A limit that is not enforced refuses nothing, so it matters only if no limit is enforced.
    const enforced = counted.filter(({ mode }) => mode === "enforce");
    const asked = enforced.length > 0 ? enforced : counted;
    asked.sort((a, b) => (b.budgets.full ?? 0) - (a.budgets.full ?? 0) || (b.budgets.near ?? 0) - (a.budgets.near ?? 0));
    const answers = await Promise.all(asked.slice(0, MAX_LIMITS).map(({ name }) =>
        get(`/v1/limits/${encodeURIComponent(name)}/top`, { rows: BUDGETS }, signal)));
    const levels = new Map();
    for (const row of answers.flatMap(({ budgets }) => budgets)) {
        if (!hasLevel(row)) continue;
        for (const field of ["user", "client"]) {
            if (row.owner[field] === undefined) continue;
            const key = `${field}=${row.owner[field]}`;
            if (!levels.has(key) || share(row) > share(levels.get(key))) levels.set(key, row);
        }
    }
    cached = { at: performance.now(), levels };
    return levels;
}
