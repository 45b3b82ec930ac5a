// Parses PowerShell files with the grammar of tree-sitter-powershell and fails
// on each place that is no PowerShell. It is a second opinion on what the
// tests' own parser lets through, no proof that 5.1 takes it.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, ...files] = process.argv.slice(2);
const require = createRequire(join(modules, 'x.js'));
const { Parser, Language } = require('web-tree-sitter');

await Parser.init();
const parser = new Parser();
parser.setLanguage(await Language.load(join(modules, 'node_modules/tree-sitter-powershell/tree-sitter-powershell.wasm')));

let bad = 0;
function look(file, node) {
  if (node.isError || node.isMissing) {
    bad++;
    const at = node.startPosition;
    console.error(`${file}:${at.row + 1}:${at.column + 1}: ${node.isMissing ? 'missing ' + node.type : 'no PowerShell: ' + JSON.stringify(node.text.slice(0, 60))}`);
    return;
  }
  for (let i = 0; i < node.childCount; i++) look(file, node.child(i));
}

function check(file, text) {
  const before = bad;
  const tree = parser.parse(text);
  look(file, tree.rootNode);
  return bad > before;
}

// The gate must be able to see something.
for (const broken of ['if ($a {', "'open", '@{ a = 1; b ', 'try { 1 } catch { 2 ', '$x = @(1, 2']) {
  const tree = parser.parse(broken);
  if (!tree.rootNode.hasError) {
    console.error(`the grammar takes ${JSON.stringify(broken)}: this check proves nothing`);
    process.exit(2);
  }
}
for (const file of files) check(file, readFileSync(file, 'utf8'));
if (bad) process.exit(1);
console.log(`${files.length} PowerShell files parse`);
