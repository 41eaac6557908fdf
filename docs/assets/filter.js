// A box before a table hides the rows that do not hold its words.
document.addEventListener("input", (event) => {
  if (!event.target.matches("input.filter")) return
  const words = event.target.value.toLowerCase().split(/\s+/)
  const tables = [...document.querySelectorAll("article table")]
  const table = tables.find((one) => event.target.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING)
  for (const row of table.tBodies[0].rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word))
})
