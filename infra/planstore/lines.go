package planstore

import (
	"errors"

	"github.com/atoll-dev/atoll/infra/change"
)

// Lines is like Read, but passes the canonical bytes of each change as they are stored. visit may
// keep them.
func (i *ChunkInfo) Lines(pieces [][]byte, verify bool, actions []change.Action, visit func(change []byte) bool) error {
	if verify {
		if err := i.verify(pieces); err != nil {
			return err
		}
	}
	wanted := make(map[change.Action]bool, len(actions))
	for _, a := range actions {
		wanted[a] = true
	}
	err := eachLine(pieces, func(action change.Action, text []byte) error {
		if (len(wanted) == 0 || wanted[action]) && !visit(text) {
			return errStop
		}
		return nil
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

func (i *ChunkInfo) verify(pieces [][]byte) error {
	digest := newChunkDigest()
	if err := eachLine(pieces, func(action change.Action, text []byte) error { digest.add(action, text); return nil }); err != nil {
		return err
	}
	if digest.String() != i.Digest {
		return errors.New("verify a chunk of the plan: its contents do not match its digest")
	}
	return nil
}
