package merged

import (
	"maps"
	"testing"
	"time"
)

// TestMerger: there is no position while a workspace sends its initial objects, and then it has everything that was sent and nothing else.
func TestMerger(t *testing.T) {
	m := newMerger(true)
	is := func(want position) {
		t.Helper()
		if at, ok := m.position(); ok != (want != nil) || !maps.Equal(at, want) {
			t.Errorf("position %v, %v, want %v", at, ok, want)
		}
	}
	bookmark := func(left, want time.Duration, due bool) {
		t.Helper()
		if after, is := m.bookmarkIn(left); after != want || is != due {
			t.Errorf("bookmark in %v, %v; want %v, %v", after, is, want, due)
		}
	}
	const long = time.Hour
	bookmark(long, 0, true) // no workspace: the initial objects are complete
	m.begin("a", 0)
	m.begin("b", 0)
	m.begin("gone", 0)
	is(nil)
	bookmark(long, 0, false)
	m.sent("a", 7)
	m.reached("a", 9)
	m.absent("gone")
	is(nil)
	m.reached("b", 4)
	is(position{"a": 9, "b": 4})
	bookmark(long, 0, true)
	m.bookmarked()
	bookmark(long, 0, false)
	m.sent("b", 5)
	is(position{"a": 9, "b": 5})
	bookmark(long, bookmarkAfterEvent, true)
	bookmark(mergedBookmarkLead, 0, true)
	m.bookmarked()
	m.reached("a", 12)
	m.reached("a", 11) // reported late
	is(position{"a": 12, "b": 5})
	bookmark(long, bookmarkAfterProgress, true)
	bookmark(mergedBookmarkLead/2, 0, true)
	m.bookmarked()
	m.begin("late", 0) // a consumer that comes while the watch runs
	m.sent("late", 3)
	is(nil)
	bookmark(long, 0, false)
	m.reached("late", 8)
	is(position{"a": 12, "b": 5, "late": 8})
	m.begin("again", 21)
	m.sent("again", 22)
	is(position{"a": 12, "b": 5, "late": 8, "again": 22})
	m.absent("late")
	is(position{"a": 12, "b": 5, "again": 22})
}
