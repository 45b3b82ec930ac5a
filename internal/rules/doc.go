// Package rules holds the house rules that a machine can check: which package
// may know which. There is nothing to import here; the rules are its tests.
package rules
