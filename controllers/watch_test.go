package controllers

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestFilterWatch: a filtered watch leaves no goroutine, whether it is stopped before its events are read or its source ends.
func TestFilterWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails if a goroutine stays
		start := func() (*watch.FakeWatcher, watch.Interface) {
			source := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 10})
			for _, name := range []string{"skipped", "first", "second"} {
				source.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
			}
			return source, FilterWatch(source, func(e watch.Event) (watch.Event, bool) {
				e.Type = watch.Modified
				return e, e.Object.(*corev1.ConfigMap).Name != "skipped"
			})
		}
		_, w := start()
		if e := <-w.ResultChan(); e.Type != watch.Modified || e.Object.(*corev1.ConfigMap).Name != "first" {
			t.Errorf("the first event is %+v", e)
		}
		synctest.Wait() // the second waits to be read
		w.Stop()
		w.Stop()

		source, w := start()
		source.Stop()
		read := 0
		for range w.ResultChan() {
			read++
		}
		if read != 2 {
			t.Errorf("%d events were read of a watch that ended after 2", read)
		}
	})
}
