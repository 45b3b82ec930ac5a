// Package readme runs what README.md tells people to type, and parses what it
// tells them to paste.
package readme
