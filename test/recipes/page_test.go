package recipes_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// block is a block of shell commands on a page.
type block struct {
	// machine is the machine that it is for: the second word after the fence; empty is the first server's.
	machine, text string
}

var fence = regexp.MustCompile("(?ms)^```sh ?([a-z0-9-]*)\n(.*?)^```$")

// blocks returns the shell blocks of a page below a heading, up to the next heading of its level or above.
func blocks(t *testing.T, page, heading string) (all []block) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(content), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	if end := regexp.MustCompile(`(?m)^#{1,` + string('0'+rune(len(level))) + `} `).FindStringIndex(section); end != nil && !insideFence(section, end[0]) {
		section = section[:end[0]]
	}
	for _, m := range fence.FindAllStringSubmatch(section, -1) {
		all = append(all, block{machine: m[1], text: m[2]})
	}
	if len(all) == 0 {
		t.Fatalf("%s, %q: no commands", page, heading)
	}
	return all
}

// insideFence reports whether a position, such as that of a comment, is inside a block.
func insideFence(text string, at int) bool { return strings.Count(text[:at], "\n```")%2 == 1 }
