package sqlite

import (
	"bytes"
	"errors"
	"io"
	"slices"
)

// walPages are the readable pages of a damaged log.
type walPages struct {
	*walReport
	wal, db io.ReaderAt
	// frames of each page that can be read, ascending.
	frames map[uint32][]int64
	// commits are the readable frames that end transactions, with the size of the database in pages.
	commits []walCommit
	// unreadable is the number of the other frames, and lastUnread the last of them.
	unreadable, lastUnread int64
	// end is the last durable commit.
	end int64
}

type walCommit struct {
	frame int64
	size  uint32
}

// readPages finds all readable frames of a damaged log. A frame after the damage is readable if its checksum
// continues that of the frame before it.
func (r *walReport) readPages(wal, db io.ReaderAt) (*walPages, error) {
	p := &walPages{walReport: r, wal: wal, db: db, frames: map[uint32][]int64{}}
	if err := p.findEnd(); err != nil {
		return nil, err
	}
	err := r.each(wal, func(n int64, f, before frame) bool {
		switch {
		case n > p.end:
			return false
		case n <= r.intact, n > 1 && r.ofGeneration(f, before) && f.follows(before.sum(), r.header.order):
			p.frames[f.page()] = append(p.frames[f.page()], n)
			if size := f.commit(); size != 0 {
				p.commits = append(p.commits, walCommit{n, size})
			}
		default:
			p.unreadable++
			p.lastUnread = n
		}
		return true
	})
	return p, err
}

// findEnd finds the last commit in the frames after the damage. Behind it may be a transaction that was never
// acknowledged, or the remains of an older one; in them, no frame continues a commit.
func (p *walPages) findEnd() error {
	proven, last := false, int64(0) // of the frames that continue each other
	return p.each(p.wal, func(n int64, f, before frame) bool {
		if n == 1 || !p.ofGeneration(f, before) || !f.follows(before.sum(), p.header.order) {
			proven, last = false, 0
			return true
		}
		if before.commit() != 0 && !f.repeats(before) {
			proven = true
			last = max(last, n-1)
		}
		if f.commit() != 0 {
			last = n
		}
		if proven {
			p.end = max(p.end, last)
		}
		return true
	})
}

// content reads the page of a frame.
func (p *walPages) content(frame int64) ([]byte, error) {
	page := make([]byte, p.header.pageSize)
	_, err := p.wal.ReadAt(page, p.offset(frame)+walFrameHeader)
	return page, err
}

// stored reads a page of the database file; nil if the file ends before.
func (p *walPages) stored(page uint32) ([]byte, error) {
	content := make([]byte, p.header.pageSize)
	n, err := p.db.ReadAt(content, int64(page-1)*p.header.pageSize)
	if n < len(content) && (err == nil || errors.Is(err, io.EOF)) {
		return nil, nil
	}
	return content, err
}

// storedAs returns the last of the frames that the database file has, 0 if it has another content.
func (p *walPages) storedAs(page uint32, frames []int64) (int64, error) {
	have, err := p.stored(page)
	if err != nil {
		return 0, err
	}
	for _, n := range slices.Backward(frames) {
		want, err := p.content(n)
		if err != nil {
			return 0, err
		}
		if bytes.Equal(have, want) {
			return n, nil
		}
	}
	return 0, nil
}

// size returns the size of the database at the last commit up to a frame or 0.
func (p *walPages) size(upTo int64) uint32 {
	size := uint32(0)
	for _, c := range p.commits {
		if c.frame <= upTo {
			size = c.size
		}
	}
	return size
}

// allStored reports whether the database file has the last content of all pages.
func (p *walPages) allStored() (bool, error) {
	size := p.size(p.end)
	for page, frames := range p.frames {
		if page > size {
			continue
		}
		if n, err := p.storedAs(page, frames[len(frames)-1:]); err != nil || n == 0 {
			return false, err
		}
	}
	return true, nil
}

// covered reports whether a checkpoint has copied the unreadable frames to the database file. It has, if the
// file has everything up to the first commit after them: a checkpoint copies all pages. The file then has each page
// as that commit or a later one has it. Only pages of unreadable frames may have another content.
func (p *walPages) covered() (bool, error) {
	commit := int64(0)
	for _, c := range p.commits {
		if c.frame > p.lastUnread {
			commit = c.frame
			break
		}
	}
	size := p.size(p.end)
	after, others := false, int64(0)
	for page, frames := range p.frames {
		base := 0
		for base < len(frames) && frames[base] <= commit {
			base++
		}
		if base == 0 || page > size {
			continue
		}
		n, err := p.storedAs(page, frames[base-1:])
		switch {
		case err != nil:
			return false, err
		case n == 0:
			others++
		case n > p.lastUnread:
			after = true
		}
	}
	return after && others <= p.unreadable, nil
}

// untouched reports whether no checkpoint has copied frames after the damage to the database file. Then the file with
// the frames before the damage has the state of the last commit among them.
func (p *walPages) untouched() (bool, error) {
	size := p.size(p.commit)
	for page, frames := range p.frames {
		if frames[0] <= p.commit || size != 0 && page > size {
			continue // the frames before the damage replace it
		}
		if n, err := p.storedAs(page, frames); err != nil || n != 0 {
			return false, err
		}
	}
	return true, nil
}

// choose returns the frame of each page that belongs to the database, up to a commit and after another frame.
func (p *walPages) choose(after, upTo int64) map[uint32]int64 {
	chosen := map[uint32]int64{}
	for page, frames := range p.frames {
		for _, n := range frames {
			if n > after && n <= upTo {
				chosen[page] = n
			}
		}
	}
	return chosen
}
