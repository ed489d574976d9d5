// Keeps the view that the reader had asked for: the fragment of the address survives the login.

const form = document.querySelector("form");
if (form && location.hash.startsWith("#/")) form.action = `/login${location.hash}`;
