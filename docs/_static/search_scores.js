// How search orders its results. Scorer.weights, which docs/site_pages.py appends, says how much a page is about a word.
// A section whose title is the query comes before its page. A key comes first if it is what was typed.
var Scorer = {
  score: ([page, title, , , score, , kind]) => {
    const query = document.querySelector('input[name="q"]').value.trim().toLowerCase();
    if (kind === "object") return /[_.]/.test(query) && title.toLowerCase().endsWith(query) ? 500 : score / 100;
    const stemmer = new Stemmer();
    const weight = (word) => Scorer.weights[stemmer.stemWord(word)]?.[page] || 0;
    const relevance = splitQuery(query).reduce((sum, word) => sum + weight(word), 0);
    const heading = title.toLowerCase().split(" > ").pop();
    const ofTitle = kind === "title" ? (20 * query.length) / heading.length : heading.startsWith(query) ? 20 : 0;
    return score / 10 + relevance + ofTitle;
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
