package postgres

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/kv"
)

// candidate is the database of a host that accepts writes.
type candidate struct {
	host     string
	running  string // identifies the running database
	timeline uint32 // increases with every promotion
	heads    map[string]position
	dropped  map[string]bool // origins of dropped keyspaces
	// has contains, for each candidate, what this one has of its keyspaces' last commits.
	has []map[string]match
}

// position is the last commit of a keyspace.
type position struct {
	origin string
	commit commitID // without the token
	token  string
	lost   kv.Revision // a revision that a server knows and the database lacks
}

// match is what a database has of a commit of another one.
type match struct {
	token  string // of the commit with the same revision, if there is one
	former bool   // the keyspace is the successor, by a recovery, of the other one's
}

// judge chooses the database that has all commits of the others. A promoted standby is on a
// later timeline than the former primary; if it lacks commits of the former primary, none
// can be used, unless a server has recorded that the promoted one lacks them.
func judge(all []*candidate) (int, error) {
	if len(all) == 1 {
		return 0, nil
	}
	for i, c := range all {
		wins := true
		for j, other := range all {
			if i != j && !c.succeeds(j, other) {
				wins = false
			}
		}
		if wins {
			return i, nil
		}
	}
	var names []string
	for _, c := range all {
		names = append(names, c.String())
	}
	slices.Sort(names)
	return 0, fmt.Errorf("%w: several of its hosts accept writes, and none certainly has all acknowledged ones: %s. "+
		"Stop the one that must not be used, or name only the other one in the URL", kv.ErrUnavailable, strings.Join(names, "; "))
}

func (c *candidate) String() string {
	var at []string
	for name, h := range c.heads {
		at = append(at, fmt.Sprintf("keyspace %q at revision %d", name, h.commit.rev))
	}
	slices.Sort(at)
	if len(at) == 0 {
		at = []string{"no keyspaces"}
	}
	return fmt.Sprintf("%s (timeline %d, %s)", c.host, c.timeline, strings.Join(at, ", "))
}

// succeeds reports whether c has all that others[j] has, and certainly comes after it.
func (c *candidate) succeeds(j int, other *candidate) bool {
	further, outdated := false, false
	for _, ours := range c.heads {
		if other.dropped[ours.origin] {
			return false // it lacks the drop
		}
	}
	for name, theirs := range other.heads {
		ours, ok := c.heads[name]
		if c.dropped[theirs.origin] {
			further = true // and a new keyspace may have its name
			continue
		}
		if !ok {
			if _, _, partition := kv.ParsePartitionName(name); partition {
				continue // merged
			}
			return false
		}
		if !ours.includes(theirs, c.has[j][name]) {
			return false
		}
		further = further || theirs.commit.before(ours.commit) || ours.origin != theirs.origin
		outdated = outdated || theirs.lost != 0 && ours.lost == 0
	}
	further = further || len(c.heads) > len(other.heads)
	switch {
	case outdated:
		return true
	case c.timeline == other.timeline:
		return further
	default:
		return c.timeline > other.timeline
	}
}

// includes reports whether the history that ends at ours includes the commit theirs.
func (ours position) includes(theirs position, found match) bool {
	switch {
	case ours.origin != theirs.origin:
		return found.former
	case ours.commit.before(theirs.commit):
		return false
	case ours.commit.rev == theirs.commit.rev && ours.commit.sub == theirs.commit.sub:
		return ours.token == theirs.token
	case found.token != "":
		return found.token == theirs.token
	}
	// The rows of old commits are swept, and there is none of a keyspace's creation.
	return theirs.commit.rev == 1 || theirs.commit.rev < ours.commit.rev-keepCommits || theirs.commit.sub > 0
}
