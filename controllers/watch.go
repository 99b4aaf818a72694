package controllers

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// FilterWatch passes the events of a watch on that keep says, as keep returns them. Stopping it ends its goroutine even if an event waits that is not
// read any more. That of watch.Filter stays forever then, with all that the filter refers to.
func FilterWatch(source watch.Interface, keep watch.FilterFunc) watch.Interface {
	w := &filteredWatch{source: source, keep: keep, out: make(chan watch.Event), stopped: make(chan struct{})}
	go w.run()
	return w
}

type filteredWatch struct {
	source  watch.Interface
	keep    watch.FilterFunc
	out     chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

// ResultChan implements watch.Interface.
func (w *filteredWatch) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *filteredWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.source.Stop()
}

func (w *filteredWatch) run() {
	defer close(w.out)
	for e := range w.source.ResultChan() {
		e, kept := w.keep(e)
		if !kept {
			continue
		}
		select {
		case w.out <- e:
		case <-w.stopped:
			return
		}
	}
}
