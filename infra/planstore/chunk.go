// Package planstore keeps the changes of a plan in chunks: it groups, compresses and digests them, and
// reads them again by page or by action.
//
// It knows what a change is (infra/change), and not where chunks are stored: its callers pass a
// function for that.
package planstore

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/atoll-dev/atoll/infra/change"
)

const (
	// MaxPiece is the maximum size of a stored piece.
	MaxPiece = 512 << 10
	// A chunk is full when it has this many bytes before compression, or this many changes.
	chunkBytes   = 1 << 20
	chunkChanges = 2048
	// maxChunk bounds a chunk that is read: one change of the largest possible objects.
	maxChunk = 64 << 20
)

// Contents is the index of a plan: its digest, its counts and its chunks. It is small and stored
// with the plan.
type Contents struct {
	// Digest covers all changes. It is the digest that is approved.
	Digest string        `json:"digest"`
	Counts change.Counts `json:"counts"`
	Chunks []ChunkInfo   `json:"chunks,omitempty"`
}

// ChunkInfo describes one chunk.
type ChunkInfo struct {
	Changes int `json:"changes"`
	// Pieces is the number of pieces that the chunk is stored in, nearly always one.
	Pieces int            `json:"pieces"`
	First  change.Address `json:"first"`
	Last   change.Address `json:"last"`
	// Actions counts the changes by action. Deferred changes count as Deferred.
	Actions map[change.Action]int `json:"actions"`
	Digest  string                `json:"digest"`
}

// ChunkWriter groups changes into chunks and stores each as soon as it is full, so it holds one
// chunk in memory. Create it with NewChunkWriter.
type ChunkWriter struct {
	store    func(chunk int, pieces [][]byte) error
	contents Contents
	added    bool
	last     change.Address
	text     []byte
	lines    bytes.Buffer
	packer   *gzip.Writer // reused: it takes most of a megabyte
	current  ChunkInfo
	digest   *chunkDigest
}

// NewChunkWriter returns a writer that passes each full chunk to store. One writer stores each
// chunk once. store may keep the pieces.
func NewChunkWriter(store func(chunk int, pieces [][]byte) error) *ChunkWriter {
	return &ChunkWriter{store: store, digest: newChunkDigest()}
}

// Add adds a change. Changes must be sorted by address, so that the digest does not depend on the
// order in which they were decided.
func (c *ChunkWriter) Add(change *change.Change) error {
	text, err := change.Encode()
	if err != nil {
		return fmt.Errorf("%s: encode the change: %w", change.Address, err)
	}
	if err := c.add(change.Address, change.IndexedAction(), text); err != nil {
		return err
	}
	c.contents.Counts.Add(change)
	return nil
}

// AddNoOp adds a no-op for a resource. It writes the same bytes as Add at a tenth of the cost: most
// of a large plan is no-ops.
func (c *ChunkWriter) AddNoOp(address change.Address) error {
	if !isPlain(&address) {
		return c.Add(&change.Change{Address: address, Action: change.NoOp})
	}
	text := append(c.text[:0], `{"address":{`...)
	if address.Namespace != "" {
		text = append(append(append(text, `"namespace":"`...), address.Namespace...), `",`...)
	}
	text = append(append(append(text, `"type":"`...), address.Type...), `","name":"`...)
	c.text = append(append(text, address.Name...), `"},"action":"no-op"}`...)
	if err := c.add(address, change.NoOp, c.text); err != nil {
		return err
	}
	c.contents.Counts.Changes++
	c.contents.Counts.NoOp++
	return nil
}

// isPlain reports whether the address of a managed resource needs no escaping in JSON.
func isPlain(a *change.Address) bool {
	if a.Data || a.Deposed != "" {
		return false
	}
	for _, text := range [...]string{a.Namespace, a.Type, a.Name} {
		for i := range len(text) {
			switch b := text[i]; {
			case b < ' ', b > '~', b == '"', b == '\\', b == '<', b == '>', b == '&':
				return false
			}
		}
	}
	return true
}

func (c *ChunkWriter) add(address change.Address, filed change.Action, text []byte) error {
	if c.added && c.last.Compare(address) >= 0 {
		return fmt.Errorf("%s follows %s: changes must be added in the order of their addresses, each once", address, c.last)
	}
	if c.current.Changes > 0 && (c.lines.Len()+len(text) > chunkBytes || c.current.Changes >= chunkChanges) {
		if err := c.flush(); err != nil {
			return err
		}
	}
	if c.current.Changes == 0 {
		c.current = ChunkInfo{First: address, Actions: map[change.Action]int{}}
	}
	c.added, c.last, c.current.Last = true, address, address
	c.current.Changes++
	c.current.Actions[filed]++
	c.digest.add(filed, text)
	// Each line starts with its action, so that a filter need not decode the other lines.
	c.lines.WriteString(string(filed))
	c.lines.WriteByte(' ')
	c.lines.Write(text)
	c.lines.WriteByte('\n')
	return nil
}

func (c *ChunkWriter) flush() error {
	if c.current.Changes == 0 {
		return nil
	}
	if c.packer == nil {
		var err error
		if c.packer, err = gzip.NewWriterLevel(nil, gzip.BestSpeed); err != nil { // output is a third larger than with the best level, at a quarter of the cost
			return err
		}
	}
	var packed bytes.Buffer
	c.packer.Reset(&packed)
	if _, err := c.packer.Write(c.lines.Bytes()); err != nil {
		return err
	}
	if err := c.packer.Close(); err != nil {
		return err
	}
	var pieces [][]byte
	for rest := packed.Bytes(); len(rest) > 0; {
		n := min(len(rest), MaxPiece)
		pieces, rest = append(pieces, rest[:n:n]), rest[n:]
	}
	c.current.Pieces, c.current.Digest = len(pieces), c.digest.String()
	if err := c.store(len(c.contents.Chunks), pieces); err != nil {
		return err
	}
	c.contents.Chunks = append(c.contents.Chunks, c.current)
	c.current, c.digest = ChunkInfo{}, newChunkDigest()
	c.lines.Reset()
	return nil
}

// Finish stores the last chunk and returns the index of the plan.
func (c *ChunkWriter) Finish() (*Contents, error) {
	if err := c.flush(); err != nil {
		return nil, err
	}
	c.contents.Digest = digestOf(c.contents.Chunks)
	out := c.contents
	return &out, nil
}

// Check returns an error unless the contents have the approved digest.
func (c *Contents) Check(approved string) error {
	if got := digestOf(c.Chunks); got != approved {
		return fmt.Errorf("the plan's contents have digest %s, but digest %s was approved: create a new plan", got, approved)
	}
	return nil
}

// errStop ends the reading of a chunk early.
var errStop = errors.New("stop")

// Read calls visit for each change with one of the actions, or for every change if actions is
// empty, until visit returns false. With verify, it first checks the whole chunk against its
// digest, which applying a plan requires.
func (i *ChunkInfo) Read(pieces [][]byte, verify bool, actions []change.Action, visit func(*change.Change) bool) error {
	var unreadable error
	err := i.Lines(pieces, verify, actions, func(text []byte) bool {
		var c change.Change
		if err := json.Unmarshal(text, &c); err != nil {
			unreadable = fmt.Errorf("decode a change of the plan: %w", err)
			return false
		}
		return visit(&c)
	})
	return errors.Join(err, unreadable)
}

func eachLine(pieces [][]byte, visit func(change.Action, []byte) error) error {
	readers := make([]io.Reader, len(pieces))
	for i := range pieces {
		readers[i] = bytes.NewReader(pieces[i])
	}
	unpacked, err := gzip.NewReader(io.MultiReader(readers...))
	if err != nil {
		return fmt.Errorf("read a chunk of the plan: %w", err)
	}
	lines := bufio.NewReaderSize(io.LimitReader(unpacked, maxChunk), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a chunk of the plan: %w", err)
		}
		action, text, found := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
		if !found {
			return errors.New("read a chunk of the plan: a line has no action")
		}
		if err := visit(change.Action(action), text); err != nil {
			return err
		}
	}
}

// Page returns up to limit changes after an address with one of the actions, or with any action if
// actions is empty, and whether there are more. It skips chunks without such changes, and does not
// verify digests.
func (c *Contents) Page(after *change.Address, limit int, actions []change.Action, load func(chunk int) ([][]byte, error)) (page []*change.Change, more bool, err error) {
	for n := range c.Chunks {
		info := &c.Chunks[n]
		if after != nil && info.Last.Compare(*after) <= 0 || !info.has(actions) {
			continue
		}
		if len(page) >= limit {
			return page, true, nil
		}
		pieces, err := load(n)
		if err != nil {
			return nil, false, err
		}
		full := false
		err = info.Read(pieces, false, actions, func(change *change.Change) bool {
			if after != nil && change.Address.Compare(*after) <= 0 {
				return true
			}
			full = len(page) >= limit
			if !full {
				page = append(page, change)
			}
			return !full
		})
		if err != nil {
			return nil, false, err
		}
		if full {
			return page, true, nil
		}
	}
	return page, false, nil
}

func (i *ChunkInfo) has(actions []change.Action) bool {
	for _, a := range actions {
		if i.Actions[a] > 0 {
			return true
		}
	}
	return len(actions) == 0
}
