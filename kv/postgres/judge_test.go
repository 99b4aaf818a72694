package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestJudge: which of two databases that accept writes has all acknowledged ones.
func TestJudge(t *testing.T) {
	at := func(rev kv.Revision, token string) position {
		return position{origin: "o", commit: commitID{rev: rev}, token: token}
	}
	for _, tc := range []struct {
		name string
		a, b candidate
		// what each has of the other one's last commit
		aHas, bHas match
		want       string
	}{
		{name: "the standby was promoted and has been written to",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(9, "y")}}, bHas: match{token: "x"}, want: "b"},
		{name: "the standby was promoted a moment ago",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(5, "x")}}, aHas: match{token: "x"}, bHas: match{token: "x"}, want: "b"},
		{name: "the promoted standby lacks a commit",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(6, "x")}}, aHas: match{token: "w"},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(5, "w")}}, want: ""},
		{name: "a server has recorded that the promoted standby lacks a commit",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(6, "x")}}, aHas: match{token: "w"},
			b: candidate{timeline: 2, heads: map[string]position{"k": {origin: "o", commit: commitID{rev: 5}, token: "w", lost: 6}}}, want: "a"},
		{name: "both have been written to",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(6, "x")}}, aHas: match{token: "other"},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(7, "y")}}, bHas: match{token: "other"}, want: ""},
		{name: "a copy",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}},
			b: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}}, aHas: match{token: "x"}, bHas: match{token: "x"}, want: ""},
		{name: "the loss was accepted",
			a:    candidate{timeline: 1, heads: map[string]position{"k": at(900, "x")}},
			b:    candidate{timeline: 2, heads: map[string]position{"k": {origin: "p", commit: commitID{rev: 800}, token: "y"}}},
			bHas: match{former: true}, want: "b"},
		{name: "another keyspace",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x"), "l": at(1, "")}},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(9, "y")}}, bHas: match{token: "x"}, want: ""},
		{name: "a merged partition",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x"), kv.PartitionName("k", "/p/"): at(3, "z")}},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(9, "y")}}, bHas: match{token: "x"}, want: "b"},
		{name: "a dropped keyspace",
			a: candidate{timeline: 1, heads: map[string]position{"l": {origin: "q", commit: commitID{rev: 5}}, "k": at(5, "x")}},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(5, "x")}, dropped: map[string]bool{"q": true}}, bHas: match{token: "x"}, want: "b"},
		{name: "a dropped keyspace, and a new one of its name",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}},
			b: candidate{timeline: 2, heads: map[string]position{"k": {origin: "p", commit: commitID{rev: 2}, token: "y"}},
				dropped: map[string]bool{"o": true}}, want: "b"},
		{name: "the promoted standby lacks a drop",
			a: candidate{timeline: 1, heads: map[string]position{"l": at(5, "x")}, dropped: map[string]bool{"q": true}},
			b: candidate{timeline: 2, heads: map[string]position{"l": at(5, "x"), "k": {origin: "q", commit: commitID{rev: 5}}}}, want: ""},
		{name: "history that was swept",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}},
			b: candidate{timeline: 2, heads: map[string]position{"k": at(5+2*keepCommits, "y")}}, want: "b"},
		{name: "a database that was never used",
			a: candidate{timeline: 1},
			b: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}}, want: "b"},
		{name: "a promoted standby that was never used",
			a: candidate{timeline: 1, heads: map[string]position{"k": at(5, "x")}},
			b: candidate{timeline: 2}, want: ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.a.host, tc.b.host = "a", "b"
			tc.a.has, tc.b.has = []map[string]match{nil, {"k": tc.aHas}}, []map[string]match{{"k": tc.bHas}, nil}
			best, err := judge([]*candidate{&tc.a, &tc.b})
			switch {
			case tc.want == "" && (!errors.Is(err, kv.ErrUnavailable) || !strings.Contains(err.Error(), "a (timeline") || !strings.Contains(err.Error(), "b (timeline")):
				t.Errorf("chose %d, %v; want a refusal that names both", best, err)
			case tc.want != "" && (err != nil || []string{"a", "b"}[best] != tc.want):
				t.Errorf("chose %d, %v; want %s", best, err, tc.want)
			}
		})
	}
}
