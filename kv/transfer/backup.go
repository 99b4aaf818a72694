package transfer

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Part is one keyspace to back up.
type Part struct {
	Name   string
	Source BackupReader
}

// BackupReader is the part of a keyspace that a backup needs.
type BackupReader interface {
	SourceReader
	LeaseList(ctx context.Context) ([]kv.LeaseID, kv.Revision, error)
}

// BackupOptions are the options of a backup.
type BackupOptions struct {
	// Plain leaves the keys uncompressed.
	Plain    bool
	Created  time.Time
	Progress ProgressHooks
}

// Backup writes keyspaces, each at one revision, while they are in use.
func Backup(ctx context.Context, w io.Writer, parts []Part, opts BackupOptions) ([]Section, error) {
	b, err := newBlockWriter(w, !opts.Plain)
	if err != nil {
		return nil, err
	}
	if err := b.writeJSON(blockHeader, fileHeader{Format: formatVersion, Created: opts.Created.UTC()}); err != nil {
		return nil, err
	}
	var sections []Section
	for _, p := range parts {
		s, err := backupPart(ctx, b, p, opts.Progress)
		if err != nil {
			return nil, fmt.Errorf("back up keyspace %q: %w", p.Name, err)
		}
		sections = append(sections, *s)
	}
	return sections, b.writeJSON(blockEnd, fileEnd{Sections: len(sections), SHA256: hex.EncodeToString(b.sum.Sum(nil))})
}

func backupPart(ctx context.Context, b *blockWriter, p Part, progress ProgressHooks) (*Section, error) {
	all := kv.Prefix(nil)
	total, rev, err := count(ctx, p.Source, all)
	if err != nil {
		return nil, err
	}
	progress.phase("back up "+p.Name, total)
	s := &Section{Name: p.Name, Revision: rev}
	// Read after the revision is chosen: a lease missing here has ended since.
	ids, _, err := p.Source.LeaseList(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		l, err := p.Source.TimeToLive(ctx, id, false)
		if errors.Is(err, kv.ErrLeaseNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s.Leases = append(s.Leases, SectionLease{ID: id, TTL: int64((l.Granted + time.Second - 1) / time.Second)})
	}
	if err := b.writeJSON(blockSection, s); err != nil {
		return nil, err
	}
	var block []byte
	for e, err := range scan(ctx, p.Source, all, rev) {
		if err != nil {
			if errors.Is(err, kv.ErrCompacted) {
				err = fmt.Errorf("%w during the backup: retry when compactions are less frequent", err)
			}
			return nil, err
		}
		if len(block) > 0 && len(block)+int(size(&e)) > blockBytes {
			if err := b.write(blockKeys, block); err != nil {
				return nil, err
			}
			block = block[:0]
		}
		block = appendRecord(block, &e)
		s.Keys++
		s.Bytes += size(&e)
		progress.step(&e)
	}
	if len(block) > 0 {
		if err := b.write(blockKeys, block); err != nil {
			return nil, err
		}
	}
	return s, b.writeJSON(blockFinish, sectionEnd{Keys: s.Keys, Bytes: s.Bytes})
}

// CreateFile writes a file durably and atomically: it exists completely or not at all. Only
// its owner may read it, because it may contain Secrets. It does not replace an existing
// file unless replace is true.
func CreateFile(path string, replace bool, write func(io.Writer) error) (err error) {
	if _, serr := os.Stat(path); serr == nil && !replace {
		return fmt.Errorf("write %s: the file exists: choose another name, or use --overwrite", path)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(temp.Name()) // fails after the rename
	buffered := bufio.NewWriterSize(temp, 1<<20)
	if err := errors.Join(write(buffered)); err != nil {
		return errors.Join(err, temp.Close())
	}
	err = buffered.Flush()
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// Not every system can sync a directory; the file itself is durable.
	_ = dir.Sync()
	return dir.Close()
}
