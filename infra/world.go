package infra

import "github.com/atoll-dev/atoll/infra/reference"

// World is what is written and what is there, in memory, with who refers to whom. Whoever follows
// the API tells it of changes. It is safe for concurrent use.
type World struct{}

// NewWorld gives a World in which nothing is. It needs the language to read references.
func NewWorld(language *reference.Language, providers Providers) *World { panic("not written yet") }

// SetObject takes in an object that was made or has changed.
func (w *World) SetObject(o *Object) { panic("not written yet") }

// RemoveObject takes in that there is no such object any more.
func (w *World) RemoveObject(ref reference.Ref) { panic("not written yet") }

// SetState takes in a state that was stored.
func (w *World) SetState(s *State) { panic("not written yet") }

// RemoveState takes in that there is no such state any more.
func (w *World) RemoveState(ref reference.Ref) { panic("not written yet") }

// Object gives what is written, nil if nothing is.
func (w *World) Object(ref reference.Ref) *Object { panic("not written yet") }

// State gives what is stored, nil if nothing is.
func (w *World) State(ref reference.Ref) *State { panic("not written yet") }

// KindsChanged takes in that Providers serve other types than before, or other versions of them.
func (w *World) KindsChanged() { panic("not written yet") }
