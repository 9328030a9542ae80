// How search orders its results: Sphinx's own scores, and a bonus if a title contains the whole query.
// Titles of pages come before titles of sections, and the changelog comes last. For a term
// of one or two words, a page whose title is a question comes after the pages on the whole subject.
var Scorer = {
  score: (result) => {
    const [page, title, anchor, , score] = result;
    const query = (new URLSearchParams(window.location.search).get("q") || "").trim().toLowerCase();
    const isOneTerm = query.split(/\s+/).length < 3;
    const isQuestion = title.endsWith("?");
    const ofTitle = anchor ? 40 : isQuestion && isOneTerm ? -5 : 50;
    const bonus = query && title.toLowerCase().includes(query) ? ofTitle : 0;
    return page === "CHANGELOG" ? -1 : score + bonus;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
