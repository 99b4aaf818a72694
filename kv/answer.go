package kv

import "fmt"

// keyOverhead is the approximate memory of a key in addition to its bytes.
const keyOverhead = 100

// AnswerSize is the size of an answer under way, in the unit of MaxBytes. The zero value has
// no bound.
type AnswerSize struct {
	max, used int64
}

// NewAnswerSize returns the size of an empty answer that may grow to max; 0 means no bound.
func NewAnswerSize(max int64) AnswerSize { return AnswerSize{max: max} }

// Add adds a key, and returns ErrAnswerTooLarge if the answer exceeds its bound.
func (s *AnswerSize) Add(e *KeyValue) error {
	s.used += int64(len(e.Key)+len(e.Value)) + keyOverhead
	if s.max > 0 && s.used > s.max {
		return fmt.Errorf("more than %d bytes: %w", s.max, ErrAnswerTooLarge)
	}
	return nil
}

// AddAll adds keys.
func (s *AnswerSize) AddAll(all []KeyValue) error {
	for i := range all {
		if err := s.Add(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// Left returns the bound of the rest of the answer, as a MaxBytes.
func (s *AnswerSize) Left() int64 {
	if s.max == 0 {
		return 0
	}
	return max(s.max-s.used, 1)
}
