package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestCommandLineIsDocumented walks the grammar: every command and every option
// of it is in docs/cli.md.
func TestCommandLineIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	parser := kong.Must(&grammar{}, kong.Name("eqvps"), kong.Vars(grammarVars()))
	err = kong.Visit(parser.Model, func(n kong.Visitable, next kong.Next) error {
		switch n := n.(type) {
		case *kong.Flag:
			if n.Name != "help" && !regexp.MustCompile("--"+n.Name+`\b`).MatchString(doc) {
				t.Errorf("docs/cli.md lacks --%s", n.Name)
			}
		case *kong.Node:
			if n.Type == kong.CommandNode && !strings.Contains(doc, n.Name) {
				t.Errorf("docs/cli.md lacks the command %s", n.Name)
			}
		}
		return next(nil)
	})
	if err != nil {
		t.Fatal(err)
	}
}
