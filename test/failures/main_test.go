package main

import (
	"strings"
	"testing"
)

func TestLongFailureKeepsItsEnd(t *testing.T) {
	in := "--- FAIL: TestA (9.00s)\n" + strings.Repeat("    a_test.go:1: log\n", 300) + "    a_test.go:2: wrong\nFAIL\tp\t9s\n"
	var out strings.Builder
	if err := run(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	repeated := strings.TrimPrefix(out.String(), in)
	if lines := strings.Count(repeated, "\n"); lines > firstLines+lastLines+5 {
		t.Errorf("%d lines are repeated", lines)
	}
	for _, line := range []string{"--- FAIL: TestA (9.00s)\n", "… 242 lines are above …", "a_test.go:2: wrong\nFAIL\tp\t9s\n"} {
		if !strings.Contains(repeated, line) {
			t.Errorf("the end lacks %q:\n%s", line, repeated)
		}
	}
}

func TestFailures(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"nothing failed": {"ok  \tp\t1s\nI1129 log\n", ""},
		"a subtest": {`log
--- FAIL: TestA (0.00s)
    --- FAIL: TestA/sub (0.00s)
        a_test.go:3: wrong
            more
E1129 log
    indented log
FAIL
FAIL	p	0.018s
ok  	q	1s
`, `--- FAIL: TestA (0.00s)
    --- FAIL: TestA/sub (0.00s)
        a_test.go:3: wrong
            more
FAIL	p	0.018s
`},
		"a panic":        {"panic: x\n\ngoroutine 1\nFAIL\tp\t0.1s\nFAIL\n", "panic: x\n\ngoroutine 1\nFAIL\tp\t0.1s\n"},
		"without an end": {"--- FAIL: TestA (0.00s)", "--- FAIL: TestA (0.00s)"},
	} {
		var out strings.Builder
		if err := run(strings.NewReader(tt.in), &out); err != nil {
			t.Fatal(err)
		}
		want := tt.in
		if tt.want != "" {
			want += "\nFailed:\n" + tt.want
		}
		if out.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, out.String(), want)
		}
	}
}
