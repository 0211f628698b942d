// The editor beside a task: CodeMirror 6 with what Python needs, and nothing else.
// README.md beside this file tells how labkit/tab/assets/editor.js is made from it.
import { Annotation, EditorState, StateEffect, StateField } from "@codemirror/state";
import { Decoration, EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import {
  bracketMatching, codeFolding, ensureSyntaxTree, foldEffect, foldGutter, foldKeymap, HighlightStyle,
  indentOnInput, indentUnit, syntaxHighlighting, unfoldEffect, foldedRanges,
} from "@codemirror/language";
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { python } from "@codemirror/lang-python";
import { tags } from "@lezer/highlight";

// The page's own colours: labkit/reader/assets/reader.css.
const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.self], color: "var(--code-k)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-s)" },
  { tag: tags.comment, color: "var(--code-c)", fontStyle: "italic" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-m)" },
  { tag: [tags.function(tags.definition(tags.variableName)), tags.definition(tags.className)], color: "var(--code-f)" },
  { tag: [tags.className, tags.meta], color: "var(--code-b)" },
]);

// Text that came from outside (another tab, a reset) is no edit of this one.
const fromOutside = Annotation.define();

// One line that an error names.
const markLine = StateEffect.define();
const markedLine = StateField.define({
  create: () => Decoration.none,
  update(marks, transaction) {
    marks = marks.map(transaction.changes);
    for (const effect of transaction.effects) {
      if (effect.is(markLine)) {
        marks = effect.value === null ? Decoration.none
          : Decoration.set([Decoration.line({ class: "cm-wrong" }).range(effect.value)]);
      }
    }
    return marks;
  },
  provide: (field) => EditorView.decorations.from(field),
});

/**
 * Make an editor.
 * @param parent the element that it fills.
 * @param text what stands in it at first.
 * @param on {change(text), run()}: told of each edit, and of Ctrl-Enter.
 */
export function makeEditor(parent, text, on) {
  const run = () => { on.run(); return true; };
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(), foldGutter(), codeFolding(), history(), drawSelection(), highlightActiveLine(),
        indentUnit.of("    "), EditorState.tabSize.of(4), indentOnInput(), bracketMatching(), closeBrackets(),
        python(), syntaxHighlighting(colours), markedLine,
        EditorView.contentAttributes.of({ "aria-label": "Python" }),
        keymap.of([
          { key: "Mod-Enter", run }, { key: "Ctrl-Enter", run },
          ...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...foldKeymap, indentWithTab,
        ]),
        EditorView.updateListener.of((update) => {
          const outside = update.transactions.some((transaction) => transaction.annotation(fromOutside));
          if (update.docChanged && !outside) on.change(update.state.doc.toString());
        }),
      ],
    }),
  });

  /** Every function of the text: {name: "Class.method", line, from, to, body: {from, to}}. */
  function functions() {
    const { state } = view;
    const tree = ensureSyntaxTree(state, state.doc.length, 1000);
    const found = [], classes = [];
    tree?.iterate({
      enter(node) {
        if (node.name !== "ClassDefinition" && node.name !== "FunctionDefinition") return;
        const label = node.node.getChild("VariableName"), body = node.node.getChild("Body");
        if (!label || !body) return;
        const name = [...classes, state.sliceDoc(label.from, label.to)].join(".");
        if (node.name === "ClassDefinition") return void classes.push(state.sliceDoc(label.from, label.to));
        found.push({ name, from: node.from, to: node.to, body: { from: body.from + 1, to: body.to } });
        return false; // functions inside of functions belong to them
      },
      leave(node) {
        if (node.name === "ClassDefinition") classes.pop();
      },
    });
    return found;
  }

  const goTo = (from) => {
    view.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: "start", yMargin: 40 }) });
  };

  return {
    text: () => view.state.doc.toString(),
    focus: () => view.focus(),
    destroy: () => view.destroy(),

    /** Put another text in its place; undo brings the old one back. */
    replace(other) {
      if (other === view.state.doc.toString()) return;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: other }, annotations: fromOutside.of(true) });
    },

    /** Fold all functions but these, and go to the first of them. */
    show(names) {
      const all = functions(), effects = [];
      foldedRanges(view.state).between(0, view.state.doc.length, (from, to) => void effects.push(unfoldEffect.of({ from, to })));
      for (const { name, body } of all) if (!names.includes(name) && body.to > body.from) effects.push(foldEffect.of(body));
      view.dispatch({ effects });
      const first = all.find(({ name }) => names.includes(name));
      if (first) goTo(first.from);
    },

    /** Unfold one line, go there, and mark it if something is wrong with it. */
    goToLine(number, wrong = false) {
      const line = view.state.doc.line(Math.min(Math.max(number, 1), view.state.doc.lines)), effects = [];
      foldedRanges(view.state).between(line.from, line.to, (from, to) => void effects.push(unfoldEffect.of({ from, to })));
      view.dispatch({ effects: [...effects, markLine.of(wrong ? line.from : null)] });
      goTo(line.from);
    },

    unmark: () => view.dispatch({ effects: markLine.of(null) }),
  };
}
