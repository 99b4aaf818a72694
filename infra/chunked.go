package infra

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/atoll-dev/atoll/infra/plan"
)

// The sealed parts of a chunk are one stream, compressed and cut into pieces as the shown part is: a line that
// says what it is, and then for each change its address as JSON and what plan.Decision.Seal gave, each
// with its length in front.
const (
	sealedHeader = "atoll sealed 1\n"
	// maxSealed bounds what is unpacked: as much as the shown part of a chunk may be.
	maxSealed = 64 << 20
)

// errSealed is of sealed parts that cannot be read.
var errSealed = errors.New("the sealed part of the plan is damaged: plan again")

// sealedChunk collects the sealed parts of one chunk.
type sealedChunk struct {
	packed bytes.Buffer
	to     *gzip.Writer // one for all chunks: it takes most of a megabyte
	begun  bool
}

func (c *sealedChunk) add(address plan.Address, sealed []byte) error {
	name, err := json.Marshal(address)
	if err != nil {
		return err
	}
	if c.to == nil {
		if c.to, err = gzip.NewWriterLevel(nil, gzip.BestSpeed); err != nil {
			return err
		}
	}
	if !c.begun {
		c.begun = true
		c.to.Reset(&c.packed)
		if _, err := io.WriteString(c.to, sealedHeader); err != nil {
			return err
		}
	}
	for _, part := range [][]byte{name, sealed} {
		if _, err := c.to.Write(binary.AppendUvarint(nil, uint64(len(part)))); err != nil {
			return err
		}
		if _, err := c.to.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// take gives the pieces, none if nothing was added, and begins anew.
func (c *sealedChunk) take() ([][]byte, error) {
	if !c.begun {
		return nil, nil
	}
	if err := c.to.Close(); err != nil {
		return nil, err
	}
	var pieces [][]byte
	for rest := bytes.Clone(c.packed.Bytes()); len(rest) > 0; {
		n := min(len(rest), plan.MaxPiece)
		pieces, rest = append(pieces, rest[:n:n]), rest[n:]
	}
	c.begun = false
	c.packed.Reset()
	return pieces, nil
}

// openSealed gives what is sealed in a chunk, by address. There are no pieces if nothing is.
func openSealed(pieces [][]byte) (map[plan.Address][]byte, error) {
	out := map[plan.Address][]byte{}
	if len(pieces) == 0 {
		return out, nil
	}
	readers := make([]io.Reader, len(pieces))
	for i := range pieces {
		readers[i] = bytes.NewReader(pieces[i])
	}
	unpacked, err := gzip.NewReader(io.MultiReader(readers...))
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", errSealed, err)
	}
	from := bufio.NewReaderSize(io.LimitReader(unpacked, maxSealed), 64<<10)
	header := make([]byte, len(sealedHeader))
	if _, err := io.ReadFull(from, header); err != nil || string(header) != sealedHeader {
		return nil, fmt.Errorf("%w: it is not of this version of Atoll", errSealed)
	}
	for {
		name, err := sealedPart(from)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w (%v)", errSealed, err)
		}
		var address plan.Address
		if err := json.Unmarshal(name, &address); err != nil {
			return nil, fmt.Errorf("%w (an address cannot be read)", errSealed)
		}
		sealed, err := sealedPart(from)
		if err != nil {
			return nil, fmt.Errorf("%w (%s: %v)", errSealed, address, err)
		}
		out[address] = sealed
	}
}

// sealedPart reads one part. It is io.EOF if there is none, and another error if there is half of one.
func sealedPart(from *bufio.Reader) ([]byte, error) {
	if _, err := from.Peek(1); err != nil {
		return nil, err
	}
	length, err := binary.ReadUvarint(from)
	if err != nil || length > maxSealed {
		return nil, errors.New("a length cannot be read")
	}
	// Grown as it comes: a length that is wrong costs no memory.
	var part bytes.Buffer
	if n, err := io.CopyN(&part, from, int64(length)); err != nil {
		return nil, fmt.Errorf("%d of %d bytes are there", n, length)
	}
	return part.Bytes(), nil
}
