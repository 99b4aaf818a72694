package plan

import "errors"

// Lines is Read for those who pass changes on: it gives the canonical bytes of each, as they are stored. They are
// the caller's.
func (i *ChunkInfo) Lines(pieces [][]byte, verify bool, actions []Action, visit func(change []byte) bool) error {
	if verify {
		if err := i.verify(pieces); err != nil {
			return err
		}
	}
	wanted := make(map[Action]bool, len(actions))
	for _, a := range actions {
		wanted[a] = true
	}
	err := eachLine(pieces, func(action Action, text []byte) error {
		if (len(wanted) == 0 || wanted[action]) && !visit(text) {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (i *ChunkInfo) verify(pieces [][]byte) error {
	digest := newChunkDigest()
	if err := eachLine(pieces, func(action Action, text []byte) error { digest.add(action, text); return nil }); err != nil {
		return err
	}
	if digest.String() != i.Digest {
		return errors.New("a chunk of the plan is not the one that belongs to its digest")
	}
	return nil
}
