package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Repair says what Repair has done, or would do.
type Repair struct {
	// Damage says where the database is damaged.
	Damage string
	// Complete is set if nothing is lost: the database file already had what the log lacks.
	Complete bool
	// Keyspaces and their revisions.
	Keyspaces []RepairedKeyspace
	// Kept are the copies of the damaged files.
	Kept []string
}

// RepairedKeyspace is a keyspace of a repaired database.
type RepairedKeyspace struct {
	Name string
	// Revision is the last one that the repaired database has.
	Revision kv.Revision
	// Last is the last revision that was found in the damaged files, 0 if it is unknown. Those between the two are lost.
	Last kv.Revision
}

// RepairFile repairs a database whose write-ahead log is damaged, so that Open refuses it, and returns nil if there is no
// such damage. The repaired database has the state of one commit, which Check has verified. The damaged files are
// kept under other names. A dry run changes nothing.
//
// It needs space for a second copy of the database. A database that a process has open is not damaged in this way.
// Errors: kv.ErrDamaged (the files cannot be repaired, and were not changed).
func RepairFile(ctx context.Context, path string, dryRun bool) (_ *Repair, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("repair database %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("repair database %s: %w", abs, err)
		}
	}()
	if err := checkUnusedWAL(abs); !errors.Is(err, kv.ErrDamaged) {
		return nil, err
	}
	lock, err := lockFile(abs)
	if err != nil {
		return nil, err
	}
	defer lock.release()
	report, lost, err := findWALDamage(abs, &options{})
	if err != nil || report == nil || !report.damaged() || !lost {
		return nil, err
	}
	wal, err := os.Open(abs + "-wal")
	if err != nil {
		return nil, err
	}
	defer wal.Close()
	db, err := os.Open(abs)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	pages, err := report.readPages(wal, db)
	if err != nil {
		return nil, err
	}
	out := &Repair{Damage: report.describe(abs)}
	if out.Complete, err = pages.covered(); err != nil {
		return nil, err
	}
	after, upTo := int64(0), report.commit
	if out.Complete {
		after, upTo = pages.lastUnread, pages.end
	}
	untouched, err := pages.untouched()
	if err != nil {
		return nil, err
	}
	if !out.Complete && !untouched {
		return nil, fmt.Errorf("%w: %s, and a part of them is in the database file: restore a backup; nothing was changed", kv.ErrDamaged, out.Damage)
	}
	built := abs + ".repaired"
	defer removeDatabase(built)
	heads, err := pages.build(ctx, built, after, upTo, true)
	if err != nil {
		return nil, fmt.Errorf("%w: the part that can be read is not consistent (%w): restore a backup; nothing was changed", kv.ErrDamaged, err)
	}
	newest := heads
	if !out.Complete {
		probe := abs + ".probe"
		defer removeDatabase(probe)
		// Its content is not consistent, and only shows the last revisions.
		if newest, err = pages.build(ctx, probe, 0, pages.end, false); err != nil {
			newest = nil // they stay unknown
		}
	}
	for _, h := range heads {
		k := RepairedKeyspace{Name: h.name, Revision: h.revision}
		for _, n := range newest {
			if n.name == h.name {
				k.Last = max(n.revision, h.revision)
			}
		}
		out.Keyspaces = append(out.Keyspaces, k)
	}
	if dryRun {
		return out, nil
	}
	out.Kept, err = replaceDatabase(abs, built, time.Now())
	return out, err
}

type keyspaceHead struct {
	name     string
	revision kv.Revision
}

// build writes a database with the pages of the given frames over those of the file, and returns its keyspaces. With check
// it also verifies the whole database.
func (p *walPages) build(ctx context.Context, path string, after, upTo int64, check bool) (heads []keyspaceHead, err error) {
	removeDatabase(path)
	if err := p.write(path, after, upTo); err != nil {
		return nil, err
	}
	if !check {
		lock, err := lockFile(path)
		if err != nil {
			return nil, err
		}
		defer lock.release()
		db := &DB{path: path, opts: options{pageSize: int(p.header.pageSize)}}
		c, err := openConn(db, 2<<10)
		if err != nil {
			return nil, err
		}
		defer c.close()
		return c.heads()
	}
	db, err := Open(path, WithReaders(1))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.Check(ctx); err != nil {
		return nil, err
	}
	err = db.read(ctx, "read the heads", func(c *conn) (err error) {
		heads, err = c.heads()
		return err
	})
	return heads, err
}

func (c *conn) heads() (all []keyspaceHead, err error) {
	s, _, err := c.c.Prepare(`SELECT name, coalesce((SELECT max(rev) FROM segment WHERE ks = keyspace.id), 1) FROM keyspace ORDER BY name`)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for s.Step() {
		all = append(all, keyspaceHead{s.ColumnText(0), s.ColumnInt64(1)})
	}
	return all, s.Err()
}

// write copies the database file, and writes the pages of frames into the copy.
func (p *walPages) write(path string, after, upTo int64) (err error) {
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := io.Copy(to, io.NewSectionReader(p.db, 0, 1<<62)); err != nil {
		return err
	}
	for page, n := range p.choose(after, upTo) {
		content, err := p.content(n)
		if err != nil {
			return err
		}
		if _, err := to.WriteAt(content, int64(page-1)*p.header.pageSize); err != nil {
			return err
		}
	}
	if size := p.size(upTo); size > 0 {
		if err := to.Truncate(int64(size) * p.header.pageSize); err != nil {
			return err
		}
	}
	return to.Sync()
}

// replaceDatabase keeps the damaged files under other names, and puts the repaired one in their place. After a crash in
// between, the damaged log is still found, and the repair starts again.
func replaceDatabase(path, repaired string, now time.Time) (kept []string, err error) {
	damaged := path + ".damaged-" + now.UTC().Format("20060102T150405Z")
	for _, suffix := range []string{"", "-wal"} {
		if err := os.Link(path+suffix, damaged+suffix); err != nil {
			if err := copyFile(path+suffix, damaged+suffix); err != nil {
				return kept, fmt.Errorf("keep the damaged files: %w", err)
			}
		}
		kept = append(kept, damaged+suffix)
	}
	if err := os.Rename(repaired, path); err != nil {
		return kept, err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return kept, err
	}
	if err := os.Remove(path + "-wal"); err != nil {
		return kept, err
	}
	return kept, syncDir(filepath.Dir(path))
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Sync()
}

// removeDatabase removes a database that no one needs, if it exists.
func removeDatabase(path string) {
	for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // left for an administrator: it is no part of the database
		}
	}
}
