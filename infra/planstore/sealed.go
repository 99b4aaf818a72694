package planstore

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/atoll-dev/atoll/infra/change"
)

// The sealed parts of a chunk are one compressed stream, cut into pieces like the shown part. It
// begins with a header line. Then, for each change, come its address as JSON and the result of
// decide.Decision.Seal, each prefixed with its length.
const (
	sealedHeader = "atoll sealed 1\n"
	// maxSealed limits the uncompressed size, like that of the shown part of a chunk.
	maxSealed = 64 << 20
)

// errSealed is returned for sealed parts that cannot be read.
var errSealed = errors.New("the sealed part of the plan is damaged: plan again")

// SealedChunk collects the sealed parts of one chunk.
type SealedChunk struct {
	packed bytes.Buffer
	to     *gzip.Writer // shared by all chunks: it takes most of a megabyte
	begun  bool
}

func (c *SealedChunk) Add(address change.Address, sealed []byte) error {
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

// Take returns the pieces, none if nothing was added, and resets the chunk.
func (c *SealedChunk) Take() ([][]byte, error) {
	if !c.begun {
		return nil, nil
	}
	if err := c.to.Close(); err != nil {
		return nil, err
	}
	var pieces [][]byte
	for rest := bytes.Clone(c.packed.Bytes()); len(rest) > 0; {
		n := min(len(rest), MaxPiece)
		pieces, rest = append(pieces, rest[:n:n]), rest[n:]
	}
	c.begun = false
	c.packed.Reset()
	return pieces, nil
}

// OpenSealed returns the sealed parts of a chunk by address. It accepts an empty list of pieces.
func OpenSealed(pieces [][]byte) (map[change.Address][]byte, error) {
	out := map[change.Address][]byte{}
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
		return nil, fmt.Errorf("%w: it was written by another version of Atoll", errSealed)
	}
	for {
		name, err := sealedPart(from)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w (%v)", errSealed, err)
		}
		var address change.Address
		if err := json.Unmarshal(name, &address); err != nil {
			return nil, fmt.Errorf("%w (invalid address)", errSealed)
		}
		sealed, err := sealedPart(from)
		if err != nil {
			return nil, fmt.Errorf("%w (%s: %v)", errSealed, address, err)
		}
		out[address] = sealed
	}
}

// sealedPart reads one part. It returns io.EOF at the end, and another error for a truncated part.
func sealedPart(from *bufio.Reader) ([]byte, error) {
	if _, err := from.Peek(1); err != nil {
		return nil, err
	}
	length, err := binary.ReadUvarint(from)
	if err != nil || length > maxSealed {
		return nil, errors.New("invalid length")
	}
	// The buffer grows with the input, so that a wrong length does not cost memory.
	var part bytes.Buffer
	if n, err := io.CopyN(&part, from, int64(length)); err != nil {
		return nil, fmt.Errorf("truncated after %d of %d bytes", n, length)
	}
	return part.Bytes(), nil
}
