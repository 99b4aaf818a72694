package reference

import (
	"container/list"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/zclconf/go-cty/cty"
)

// Programs kept ready, and paths that are kept once for all expressions. A program takes some
// 40 KB; a shape that is not among them is compiled again when it is needed.
const (
	keptPrograms = 512
	keptPaths    = 4096
)

// Language reads expressions. It is safe for concurrent use; one serves all objects.
type Language struct {
	env *cel.Env

	mu     sync.Mutex
	shapes map[string]*list.Element // of *program
	recent *list.List               // the most recently used first
	paths  map[string]cty.Path
}

// New makes a Language, which takes some milliseconds.
func New() (*Language, error) {
	env, err := cel.NewEnv(environment()...)
	if err != nil {
		return nil, err
	}
	return &Language{env: env, shapes: map[string]*list.Element{}, recent: list.New(), paths: map[string]cty.Path{}}, nil
}

// share gives the path that is kept for a text. Nearly all paths of a hundred thousand
// objects are a few dozen.
func (l *Language) share(path cty.Path, text string) cty.Path {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept, ok := l.paths[text]; ok {
		return kept
	}
	if len(l.paths) < keptPaths {
		l.paths[strings.Clone(text)] = path
	}
	return path
}

// program gives the program of a shape, compiled if it is not at hand.
func (l *Language) program(shape string) (*program, *Error) {
	if p := l.kept(shape); p != nil {
		return p, nil
	}
	// Compiled without the lock: two may do the same work, and one is kept.
	p, err := compile(l.env, strings.Clone(shape))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.shapes[shape]; ok {
		return at.Value.(*program), nil
	}
	l.shapes[p.shape] = l.recent.PushFront(p)
	if l.recent.Len() > keptPrograms {
		oldest := l.recent.Remove(l.recent.Back()).(*program)
		delete(l.shapes, oldest.shape)
	}
	return p, nil
}

func (l *Language) kept(shape string) *program {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.shapes[shape]
	if !ok {
		return nil
	}
	l.recent.MoveToFront(at)
	return at.Value.(*program)
}
