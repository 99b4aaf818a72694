package sqlite

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// The write-ahead log, as https://www.sqlite.org/fileformat2.html#the_write_ahead_log describes it: a header
// with two salts, and frames with a page each. A checksum in each frame covers all frames before it.
//
// SQLite recovers the log up to the last commit before the first frame whose checksum is wrong. After a
// crash, this frame is the end of the log: only the transaction that was being written can be incomplete.
// If the disk has damaged an older frame, SQLite does the same, and loses all later commits without an
// error. DESIGN.md explains how the two are told apart.
const (
	walMagic       = 0x377f0682 // and 1 more if checksums are big-endian
	walVersion     = 3007000
	walHeaderSize  = 32
	walFrameHeader = 24
)

// checksum is SQLite's: two sums of 32-bit words.
type checksum struct{ a, b uint32 }

func (c checksum) add(order binary.ByteOrder, data []byte) checksum {
	for ; len(data) >= 8; data = data[8:] {
		c.a += order.Uint32(data) + c.b
		c.b += order.Uint32(data[4:]) + c.a
	}
	return c
}

// walHeader is the header of a log.
type walHeader struct {
	order    binary.ByteOrder
	pageSize int64
	salts    [8]byte
	sum      checksum
}

func parseWALHeader(raw []byte) (h walHeader, ok bool) {
	magic := binary.BigEndian.Uint32(raw)
	h = walHeader{order: binary.LittleEndian, pageSize: int64(binary.BigEndian.Uint32(raw[8:])), sum: sumAt(raw[24:])}
	if magic&1 != 0 {
		h.order = binary.BigEndian
	}
	copy(h.salts[:], raw[16:24])
	valid := magic&^1 == walMagic && binary.BigEndian.Uint32(raw[4:]) == walVersion && isPageSize(h.pageSize) &&
		checksum{}.add(h.order, raw[:24]) == h.sum
	return h, valid
}

func isPageSize(n int64) bool { return n >= 512 && n <= 65536 && n&(n-1) == 0 }

func sumAt(raw []byte) checksum {
	return checksum{binary.BigEndian.Uint32(raw), binary.BigEndian.Uint32(raw[4:])}
}

// frame is a frame as it is in the file.
type frame struct{ raw []byte }

func (f frame) page() uint32 { return binary.BigEndian.Uint32(f.raw) }

// commit returns the size of the database in pages after the transaction that this frame ends, or 0.
func (f frame) commit() uint32          { return binary.BigEndian.Uint32(f.raw[4:]) }
func (f frame) saltsAre(s [8]byte) bool { return bytes.Equal(f.raw[8:16], s[:]) }
func (f frame) sum() checksum           { return sumAt(f.raw[16:]) }
func (f frame) content() []byte         { return f.raw[walFrameHeader:] }

// follows reports whether a frame's checksum continues another one.
func (f frame) follows(before checksum, order binary.ByteOrder) bool {
	return before.add(order, f.raw[:8]).add(order, f.content()) == f.sum()
}

// repeats reports whether a frame ends the same transaction as the one before it: SQLite fills the rest of a
// disk sector in this way.
func (f frame) repeats(before frame) bool {
	return bytes.Equal(f.raw[:8], before.raw[:8]) && bytes.Equal(f.content(), before.content())
}

// walReport says which frames of a log can be read. Frames are numbered from 1.
type walReport struct {
	header walHeader
	// headerLost is set if the header is damaged. The salts are then those of the frames after the damage.
	headerLost bool
	// intact frames follow the header without damage, and the last commit among them is that of frame commit, or 0.
	// SQLite recovers the log up to there.
	intact, commit int64
	// resumes is the first frame after the damage that continues the checksum of a frame with a commit. It was
	// written after that commit had become durable. 0 if nothing is damaged.
	resumes int64
}

func (r *walReport) damaged() bool { return r.resumes > 0 }

// offset returns where a frame begins in the file.
func (r *walReport) offset(n int64) int64 {
	return walHeaderSize + (n-1)*(walFrameHeader+r.header.pageSize)
}

// examineWAL reads a log, and looks for damage. pageSize is that of the database, in case the header is damaged.
func examineWAL(file io.ReaderAt, pageSize int64) (*walReport, error) {
	r := &walReport{}
	raw := make([]byte, walHeaderSize)
	switch n, err := file.ReadAt(raw, 0); {
	case n < walHeaderSize && (err == nil || errors.Is(err, io.EOF)):
		return r, nil // nothing was committed: the header is durable before any frame is written
	case n < walHeaderSize:
		return nil, err
	}
	var ok bool
	if r.header, ok = parseWALHeader(raw); !ok {
		r.headerLost = true
		r.header = walHeader{order: binary.LittleEndian, pageSize: pageSize}
		if !isPageSize(pageSize) {
			return r, nil
		}
	}
	err := r.each(file, func(n int64, f, before frame) bool {
		last := r.header.sum
		if n > 1 {
			last = before.sum()
		}
		switch {
		case !r.headerLost && r.intact == n-1 && f.saltsAre(r.header.salts) && f.follows(last, r.header.order):
			r.intact = n
			if f.commit() != 0 {
				r.commit = n
			}
		case n-1 > r.intact && before.commit() != 0 && r.ofGeneration(f, before) && f.follows(last, r.header.order) && !f.repeats(before):
			r.resumes = n
			copy(r.header.salts[:], f.raw[8:16])
			return false
		}
		return true
	})
	return r, err
}

// ofGeneration reports whether two frames were written since the log was last restarted from its beginning.
// While the salts are unknown, it only reports whether they belong together.
func (r *walReport) ofGeneration(f, before frame) bool {
	var salts [8]byte
	copy(salts[:], before.raw[8:16])
	return f.saltsAre(salts) && (r.headerLost && r.resumes == 0 || salts == r.header.salts)
}

// each calls see for every complete frame and the one before it, until it returns false. The frames are only valid
// during the call.
func (r *walReport) each(file io.ReaderAt, see func(n int64, f, before frame) bool) error {
	size := walFrameHeader + r.header.pageSize
	in := bufio.NewReaderSize(io.NewSectionReader(file, walHeaderSize, 1<<62), 1<<20)
	f, before := frame{make([]byte, size)}, frame{make([]byte, size)}
	for n := int64(1); ; n++ {
		switch _, err := io.ReadFull(in, f.raw); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
		if !see(n, f, before) {
			return nil
		}
		f, before = before, f
	}
}
