package merged

import (
	"maps"
	"time"
)

// merger decides where a watch over several workspaces stands. It has no clock and no channel: the caller reports each event that it has sent.
//
// The revision of a workspace in a position means: the client has everything up to it. A workspace sends the objects that it has in the
// order of their keys, so it has no revision before all of them are sent, and there is no position before that.
type merger struct {
	// revisions are those of workspaces whose initial objects are sent. missing are the others.
	revisions position
	missing   map[string]bool
	// events is set if an event was sent since the last bookmark, progress if only a revision has advanced.
	events, progress bool
	// initial is set until the bookmark after all initial objects is sent, if the client asked for it.
	initial bool
}

func newMerger(initial bool) *merger {
	return &merger{revisions: position{}, missing: map[string]bool{}, initial: initial}
}

// begin adds a workspace whose events follow a revision; 0 stands for its initial objects before that.
func (m *merger) begin(uid string, revision int64) {
	if revision == 0 {
		m.missing[uid] = true
		return
	}
	m.revisions[uid] = revision
}

// sent records that an event of a revision was sent.
func (m *merger) sent(uid string, revision int64) {
	m.events = true
	if !m.missing[uid] {
		m.revisions[uid] = max(m.revisions[uid], revision)
	}
}

// reached records that everything of a workspace up to a revision was sent.
func (m *merger) reached(uid string, revision int64) {
	delete(m.missing, uid)
	m.revisions[uid] = max(m.revisions[uid], revision)
	m.progress = true
}

// absent records that a workspace that was expected is no consumer.
func (m *merger) absent(uid string) {
	delete(m.missing, uid)
	delete(m.revisions, uid)
	m.progress = true
}

// position returns where the watch stands, if a client could continue there.
func (m *merger) position() (position, bool) {
	if len(m.missing) > 0 {
		return nil, false
	}
	return maps.Clone(m.revisions), true
}

// bookmarked records that a bookmark was sent.
func (m *merger) bookmarked() { m.events, m.progress, m.initial = false, false, false }

// Bookmarks follow events soon, because a client cannot continue at the resourceVersion of an object, which is one of its workspace alone.
// They follow other progress slowly.
const (
	bookmarkAfterEvent    = time.Second
	bookmarkAfterProgress = 30 * time.Second
	// mergedBookmarkLead is how long before the end of a watch bookmarks follow at once. It is less than bookmarkLead: the workspaces
	// report their revisions before.
	mergedBookmarkLead = time.Second
)

// bookmarkIn returns how long to wait before the next bookmark, if one is due at all. left is how long the watch may still run.
func (m *merger) bookmarkIn(left time.Duration) (after time.Duration, due bool) {
	switch {
	case len(m.missing) > 0:
		return 0, false
	case m.initial, m.events && left <= mergedBookmarkLead:
		return 0, true
	case m.events:
		return max(min(bookmarkAfterEvent, left-mergedBookmarkLead), 0), true
	case m.progress:
		return max(min(bookmarkAfterProgress, left-mergedBookmarkLead), 0), true
	}
	return 0, false
}
