package expr

import (
	"container/list"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/zclconf/go-cty/cty"
)

// Bounds of the caches for programs and paths. A program takes some 40 KB. A shape without a cached
// program is compiled again when it is needed.
const (
	maxPrograms = 512
	maxPaths    = 4096
)

// Language parses and evaluates expressions. It is safe for concurrent use; one instance serves all
// objects.
type Language struct {
	env     *cel.Env
	library map[string]libraryFunction

	mu     sync.Mutex
	shapes map[string]*list.Element // elements hold a *program
	recent *list.List               // most recently used first
	paths  map[string]cty.Path
}

// New returns a Language. It takes some milliseconds.
func New() (*Language, error) {
	functions := library()
	env, err := cel.NewEnv(environment(functions)...)
	if err != nil {
		return nil, err
	}
	return &Language{env: env, library: functions, shapes: map[string]*list.Element{}, recent: list.New(), paths: map[string]cty.Path{}}, nil
}

// intern returns the shared path for a text. The paths of a hundred thousand objects are mostly a
// few dozen.
func (l *Language) intern(path cty.Path, text string) cty.Path {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept, ok := l.paths[text]; ok {
		return kept
	}
	if len(l.paths) < maxPaths {
		l.paths[strings.Clone(text)] = path
	}
	return path
}

// program returns the program of a shape, from the cache or compiled.
func (l *Language) program(shape string) (*program, *Error) {
	if p := l.cached(shape); p != nil {
		return p, nil
	}
	// Compile without the lock: two callers may compile the same shape, and one program is kept.
	p, err := compile(l.env, l.library, strings.Clone(shape))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.shapes[shape]; ok {
		return at.Value.(*program), nil
	}
	l.shapes[p.shape] = l.recent.PushFront(p)
	if l.recent.Len() > maxPrograms {
		oldest := l.recent.Remove(l.recent.Back()).(*program)
		delete(l.shapes, oldest.shape)
	}
	return p, nil
}

func (l *Language) cached(shape string) *program {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.shapes[shape]
	if !ok {
		return nil
	}
	l.recent.MoveToFront(at)
	return at.Value.(*program)
}
