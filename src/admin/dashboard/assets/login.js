// Keeps the view that the reader had asked for: the fragment of the address survives the login.

const form = document.querySelector("form");
const fragment = location.hash;
form?.addEventListener("submit", async (event) => {
    if (!fragment.startsWith("#/")) return;
    event.preventDefault();
    const token = form.elements.token.value;
    const answer = await fetch("/login", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ token }),
    }).catch(() => null);
    if (answer?.ok) location.assign(`/${fragment}`);
    else form.submit();
});
