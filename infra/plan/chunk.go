package plan

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// MaxPiece is the size of the largest piece that is stored.
	MaxPiece = 512 << 10
	// A chunk is full when it has so many bytes before they are compressed, or so many changes.
	chunkBytes   = 1 << 20
	chunkChanges = 2048
	// maxChunk is the largest that is read: one change of the largest objects there can be.
	maxChunk = 64 << 20
)

// Contents says what is in a plan, and where. It is small, and stored with the plan.
type Contents struct {
	// Digest is over all changes: what is approved.
	Digest string      `json:"digest"`
	Counts Counts      `json:"counts"`
	Chunks []ChunkInfo `json:"chunks,omitempty"`
}

// ChunkInfo is one chunk.
type ChunkInfo struct {
	Changes int `json:"changes"`
	// Pieces is how many it is stored in. Nearly always one.
	Pieces int     `json:"pieces"`
	First  Address `json:"first"`
	Last   Address `json:"last"`
	// Actions is how many there are of each. What is deferred counts as such.
	Actions map[Action]int `json:"actions"`
	Digest  string         `json:"digest"`
}

// Chunks puts changes together into chunks, which it gives away as soon as they are full: it holds one
// at a time. The zero value is not usable: NewChunks.
type Chunks struct {
	store    func(chunk int, pieces [][]byte) error
	contents Contents
	added    bool
	last     Address
	text     []byte
	lines    bytes.Buffer
	packer   *gzip.Writer // one for all: it takes most of a megabyte
	current  ChunkInfo
	digest   *chunkDigest
}

// NewChunks gives each full chunk to store, which may be called again for the same chunk only
// by another Chunks. The pieces are store's to keep.
func NewChunks(store func(chunk int, pieces [][]byte) error) *Chunks {
	return &Chunks{store: store, digest: newChunkDigest()}
}

// Add adds a change. They come sorted by address, so that the digest does not depend on the order in which
// they were decided.
func (c *Chunks) Add(change *Change) error {
	text, err := change.Encode()
	if err != nil {
		return fmt.Errorf("%s: the change cannot be encoded: %w", change.Address, err)
	}
	if err := c.add(change.Address, change.filed(), text); err != nil {
		return err
	}
	c.contents.Counts.Add(change)
	return nil
}

// AddNoOp adds that there is nothing to do about a resource. It is the same as Add, at a tenth of the cost: of a large plan nearly
// everything is that.
func (c *Chunks) AddNoOp(address Address) error {
	if !address.plain() {
		return c.Add(&Change{Address: address, Action: NoOp})
	}
	text := append(c.text[:0], `{"address":{`...)
	if address.Namespace != "" {
		text = append(append(append(text, `"namespace":"`...), address.Namespace...), `",`...)
	}
	text = append(append(append(text, `"type":"`...), address.Type...), `","name":"`...)
	c.text = append(append(text, address.Name...), `"},"action":"no-op"}`...)
	if err := c.add(address, NoOp, c.text); err != nil {
		return err
	}
	c.contents.Counts.Changes++
	c.contents.Counts.NoOp++
	return nil
}

// plain tells whether an address, of a resource, is in JSON what it is.
func (a *Address) plain() bool {
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

func (c *Chunks) add(address Address, filed Action, text []byte) error {
	if c.added && c.last.Compare(address) >= 0 {
		return fmt.Errorf("%s comes after %s: changes have to be added in the order of their addresses, each once", address, c.last)
	}
	if c.current.Changes > 0 && (c.lines.Len()+len(text) > chunkBytes || c.current.Changes >= chunkChanges) {
		if err := c.flush(); err != nil {
			return err
		}
	}
	if c.current.Changes == 0 {
		c.current = ChunkInfo{First: address, Actions: map[Action]int{}}
	}
	c.added, c.last, c.current.Last = true, address, address
	c.current.Changes++
	c.current.Actions[filed]++
	c.digest.add(filed, text)
	// The action stands before each line, so that who looks for one need not read the others.
	c.lines.WriteString(string(filed))
	c.lines.WriteByte(' ')
	c.lines.Write(text)
	c.lines.WriteByte('\n')
	return nil
}

// filed is the action under which it is found.
func (c *Change) filed() Action {
	if c.Deferred != "" {
		return Deferred
	}
	return c.Action
}

// Deferred is not an action: it is under what changes are counted and found of which nothing could be decided.
const Deferred Action = "deferred"

func (c *Chunks) flush() error {
	if c.current.Changes == 0 {
		return nil
	}
	if c.packer == nil {
		var err error
		if c.packer, err = gzip.NewWriterLevel(nil, gzip.BestSpeed); err != nil { // a third larger than the best, at a quarter of the cost
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

// Finish stores what is left, and says what there is.
func (c *Chunks) Finish() (*Contents, error) {
	if err := c.flush(); err != nil {
		return nil, err
	}
	c.contents.Digest = digestOf(c.contents.Chunks)
	out := c.contents
	return &out, nil
}

// Check tells whether the contents are those of the digest that was approved.
func (c *Contents) Check(approved string) error {
	if got := digestOf(c.Chunks); got != approved {
		return fmt.Errorf("the plan's contents have the digest %s, and %s was approved", got, approved)
	}
	return nil
}

// errEnough ends the reading of a chunk.
var errEnough = errors.New("enough")

// Read gives each change of a chunk with one of the actions, or all if there are none, to visit,
// until that says no. With verify, the chunk is read to its end and checked against its digest before
// anything is visited: to carry out a plan, that is a must.
func (i *ChunkInfo) Read(pieces [][]byte, verify bool, actions []Action, visit func(*Change) bool) error {
	var unreadable error
	err := i.Lines(pieces, verify, actions, func(text []byte) bool {
		var c Change
		if err := json.Unmarshal(text, &c); err != nil {
			unreadable = fmt.Errorf("a change of the plan cannot be read: %w", err)
			return false
		}
		return visit(&c)
	})
	return errors.Join(err, unreadable)
}

func eachLine(pieces [][]byte, visit func(Action, []byte) error) error {
	readers := make([]io.Reader, len(pieces))
	for i := range pieces {
		readers[i] = bytes.NewReader(pieces[i])
	}
	unpacked, err := gzip.NewReader(io.MultiReader(readers...))
	if err != nil {
		return fmt.Errorf("a chunk of the plan cannot be read: %w", err)
	}
	lines := bufio.NewReaderSize(io.LimitReader(unpacked, maxChunk), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("a chunk of the plan cannot be read: %w", err)
		}
		action, text, found := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
		if !found {
			return errors.New("a chunk of the plan has a line that is none")
		}
		if err := visit(Action(action), text); err != nil {
			return err
		}
	}
}

// Page finds the next changes with one of the actions, or any, after an address. Chunks that have none are not
// loaded. It gives at most limit, and whether there are more. It trusts the store.
func (c *Contents) Page(after *Address, limit int, actions []Action, load func(chunk int) ([][]byte, error)) (page []*Change, more bool, err error) {
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
		err = info.Read(pieces, false, actions, func(change *Change) bool {
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

func (i *ChunkInfo) has(actions []Action) bool {
	for _, a := range actions {
		if i.Actions[a] > 0 {
			return true
		}
	}
	return len(actions) == 0
}
