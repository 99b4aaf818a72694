package transfer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Archive is a backup file that has been read and verified completely.
type Archive struct {
	Created  time.Time
	Sections []Section
	file     *os.File
}

// OpenArchive reads a backup file and verifies all of it.
// Errors: ErrDamaged.
func OpenArchive(ctx context.Context, path string, progress ProgressHooks) (*Archive, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open backup: %w", err)
	}
	a := &Archive{file: f}
	progress.phase("read "+path, 0)
	if err := a.verify(ctx, progress); err != nil {
		return nil, errors.Join(fmt.Errorf("read backup %s: %w", path, err), f.Close())
	}
	return a, nil
}

// Close closes the file.
func (a *Archive) Close() error { return a.file.Close() }

// Section returns a keyspace of the file.
func (a *Archive) Section(name string) (*Section, error) {
	names := make([]string, len(a.Sections))
	for i := range a.Sections {
		if a.Sections[i].Name == name {
			return &a.Sections[i], nil
		}
		names[i] = fmt.Sprintf("%q", a.Sections[i].Name)
	}
	return nil, fmt.Errorf("the backup has no keyspace %q: its keyspaces are %s", name, strings.Join(names, ", "))
}

// verify reads the file from beginning to end.
func (a *Archive) verify(ctx context.Context, progress ProgressHooks) error {
	in := bufio.NewReaderSize(a.file, 1<<20)
	b := newBlockReader(in, 0)
	first := make([]byte, len(magic))
	if _, err := io.ReadFull(in, first); err != nil || string(first) != magic {
		return fmt.Errorf("not an Atoll backup: %w: the file does not begin with %s", kv.ErrInvalidRequest, magic)
	}
	b.offset = int64(len(magic))
	var header fileHeader
	if err := expectJSON(b, blockHeader, &header); err != nil {
		return err
	}
	if header.Format != formatVersion {
		return fmt.Errorf("backup format %d is not supported (this version supports %d): %w: upgrade Atoll", header.Format, formatVersion, kv.ErrNewerSchema)
	}
	a.Created = header.Created
	for {
		sum := hex.EncodeToString(b.sum.Sum(nil))
		kind, payload, err := b.read()
		if err != nil {
			return err
		}
		b.add(kind, payload)
		switch kind {
		case blockSection:
			var s Section
			if err := json.Unmarshal(payload, &s); err != nil {
				return b.damaged(err.Error())
			}
			s.offset = b.offset
			if err := readSection(ctx, b, &s, progress); err != nil {
				return err
			}
			a.Sections = append(a.Sections, s)
		case blockEnd:
			var end fileEnd
			if err := json.Unmarshal(payload, &end); err != nil {
				return b.damaged(err.Error())
			}
			if end.Sections != len(a.Sections) || end.SHA256 != sum {
				return b.damaged("checksum mismatch over the whole file")
			}
			if _, err := in.ReadByte(); err != io.EOF {
				return b.damaged("data after the end")
			}
			return nil
		default:
			return b.damaged(fmt.Sprintf("unexpected block of kind %q", kind))
		}
	}
}

func expectJSON(b *blockReader, want byte, into any) error {
	kind, payload, err := b.read()
	if err != nil {
		return err
	}
	b.add(kind, payload)
	if kind != want {
		return b.damaged(fmt.Sprintf("unexpected block of kind %q", kind))
	}
	if err := json.Unmarshal(payload, into); err != nil {
		return b.damaged(err.Error())
	}
	return nil
}

// readSection reads the keys of a section up to its end.
func readSection(ctx context.Context, b *blockReader, s *Section, progress ProgressHooks) error {
	var last []byte
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		kind, payload, err := b.read()
		if err != nil {
			return err
		}
		b.add(kind, payload)
		switch kind {
		case blockKeys:
			for len(payload) > 0 {
				e, rest, ok := parseRecord(payload)
				if !ok || len(e.Key) == 0 || last != nil && bytes.Compare(e.Key, last) <= 0 {
					return b.damaged("invalid record")
				}
				payload, last = rest, e.Key
				s.Keys++
				s.Bytes += size(&e)
				progress.step(&e)
			}
		case blockFinish:
			var end sectionEnd
			if err := json.Unmarshal(payload, &end); err != nil {
				return b.damaged(err.Error())
			}
			if end.Keys != s.Keys || end.Bytes != s.Bytes {
				return b.damaged(fmt.Sprintf("keyspace %q has %d keys, want %d", s.Name, s.Keys, end.Keys))
			}
			return nil
		default:
			return b.damaged(fmt.Sprintf("unexpected block of kind %q", kind))
		}
	}
}

// keys reads the keys of a section.
func (a *Archive) keys(ctx context.Context, s *Section) keys {
	return func(yield func(kv.KeyValue, error) bool) {
		fail := func(err error) { yield(kv.KeyValue{}, fmt.Errorf("read backup: %w", err)) }
		in := io.NewSectionReader(a.file, s.offset, 1<<62)
		b := newBlockReader(bufio.NewReaderSize(in, 1<<20), s.offset)
		for {
			if err := ctx.Err(); err != nil {
				fail(err)
				return
			}
			kind, payload, err := b.read()
			if err != nil {
				fail(err)
				return
			}
			if kind == blockFinish {
				return
			}
			for len(payload) > 0 {
				e, rest, ok := parseRecord(payload)
				if kind != blockKeys || !ok {
					fail(b.damaged("the file changed after it was verified"))
					return
				}
				payload = rest
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// Restore copies a section of a backup into dst, like Copy.
// Errors: *NotEmptyError.
func Restore(ctx context.Context, a *Archive, s *Section, dst kv.Keyspace, opts Options) (*Result, error) {
	opts.fill()
	ttls := make(map[kv.LeaseID]time.Duration, len(s.Leases))
	for _, l := range s.Leases {
		ttls[l.ID] = time.Duration(l.TTL) * time.Second
	}
	ttl := func(_ context.Context, id kv.LeaseID) (time.Duration, error) {
		d, ok := ttls[id]
		if !ok {
			return 0, kv.ErrLeaseNotFound
		}
		return d, nil
	}
	existing, at, err := count(ctx, dst, opts.Span)
	if err != nil {
		return nil, fmt.Errorf("read the target: %w", err)
	}
	there := keys(noKeys)
	if existing > 0 {
		if opts.Existing == Refuse {
			return nil, &NotEmptyError{existing}
		}
		there = scan(ctx, dst, opts.Span, at)
	}
	c := &copier{dst: dst, Options: opts, leases: newLeases(dst, ttl)}
	opts.Progress.phase("restore "+s.Name, s.Keys)
	return c.load(ctx, changed(ctx, a.keys(ctx, s), opts.Change), there, s.Revision, opts.Existing)
}

// VerifyRestore compares a section of a backup with dst.
func VerifyRestore(ctx context.Context, a *Archive, s *Section, dst kv.Keyspace, opts Options) (*Comparison, error) {
	opts.fill()
	opts.Progress.phase("verify "+s.Name, s.Keys)
	out, err := verify(ctx, a.keys(ctx, s), 0, dst, opts)
	if err != nil {
		return nil, err
	}
	out.Source = s.Revision
	return out, nil
}
