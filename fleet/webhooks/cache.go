package webhooks

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

const (
	// workers is the number of requests at the same time.
	workers = 8
	// minBackoff and maxBackoff bound the time until a question without an answer is asked again.
	minBackoff = time.Second
	maxBackoff = time.Minute
	// maxPause bounds how long a webhook that does not respond is left alone, by default.
	maxPause = 15 * time.Second
	// maxOpen bounds the questions that wait for an answer, because they contain objects.
	maxOpen = 10_000
	// maxAnswerBytes bounds the answers that are kept. The least recently used are dropped, and asked again
	// when they are needed.
	maxAnswerBytes = 256 << 20
)

// Ask asks one question: Caller.Ask, or for a syncer in a member the server of its view.
type Ask func(ctx context.Context, q interpret.Question) (interpret.Answer, error)

// Config configures a Cache.
type Config struct {
	// Ask is required.
	Ask Ask
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// MaxPause bounds how long a webhook that does not respond is left alone. It defaults to 15 s.
	MaxPause time.Duration
}

// Cache answers questions from memory, and asks those to which it has no answer in the background.
type Cache struct {
	cfg   Config
	queue workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	entries map[string]*entry
	used    *list.List // keys of the answered entries, the most recently used first
	bytes   int
	open    int // entries without an answer
	// deferred are questions without their objects that were not taken because too many are open.
	deferred map[string]interpret.Question
	pauses   map[string]*pause // by webhook
}

// entry is one question.
type entry struct {
	question interpret.Question // only while it has no answer
	answer   interpret.Answer
	answered *list.Element // nil while it has no answer
	size     int
	err      error // of the last attempt; interpret.ErrPending before the first
	wanted   bool  // it was needed since the last attempt
}

// pause is a webhook that does not respond.
type pause struct {
	failures int
	until    time.Time
	err      error
}

// NewCache returns an empty Cache. It asks nothing before Run.
func NewCache(cfg Config) *Cache {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.MaxPause == 0 {
		cfg.MaxPause = maxPause
	}
	return &Cache{cfg: cfg, entries: map[string]*entry{}, used: list.New(), deferred: map[string]interpret.Question{}, pauses: map[string]*pause{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[string]{Clock: cfg.Clock})}
}

// Answer implements interpret.Answers.
func (c *Cache) Answer(q interpret.Question) (interpret.Answer, error) {
	key := q.Key()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil {
		if c.open >= maxOpen {
			short := q
			short.Object, short.Observed, short.Members = nil, nil, nil
			c.deferred[q.Kind.String()+"/"+q.Namespace+"/"+q.Name+"/"+string(q.Operation)] = short
			return interpret.Answer{}, interpret.ErrPending
		}
		e = &entry{question: q, err: interpret.ErrPending}
		c.entries[key] = e
		c.open++
		c.queue.Add(key)
	}
	e.wanted = true
	if e.answered == nil {
		return interpret.Answer{}, e.err
	}
	c.used.MoveToFront(e.answered)
	return e.answer, nil
}

// Run asks until ctx ends. It calls notify with each question that has been answered or has failed, so that
// the controllers that need the answer decide again. notify must not block.
func (c *Cache) Run(ctx context.Context, notify func(interpret.Question)) {
	controllers.RunWorkers(ctx, c.queue, workers,
		func(ctx context.Context, key string) error { return c.attempt(ctx, key, notify) },
		func(string, error) (again bool) { return true })
}

// attempt asks one question.
func (c *Cache) attempt(ctx context.Context, key string, notify func(interpret.Question)) error {
	q, paused := c.take(key)
	if q == nil {
		return nil
	}
	if paused != nil {
		c.record(key, interpret.Answer{}, paused.err)
		notify(*q)
		c.queue.AddAfter(key, paused.until.Sub(c.cfg.Clock.Now()))
		return nil
	}
	a, err := c.cfg.Ask(ctx, *q)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	paused = c.recordPause(q, err)
	again := c.record(key, a, err)
	notify(*q)
	for _, other := range again {
		notify(other)
	}
	if paused != nil {
		c.queue.AddAfter(key, paused.until.Sub(c.cfg.Clock.Now()))
		return nil
	}
	return err
}

// take returns the question of a key, nil if it needs no answer any more. It also returns the pause of its webhook,
// nil if it may be asked now.
func (c *Cache) take(key string) (q *interpret.Question, paused *pause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil || e.answered != nil {
		return nil, nil
	}
	if !e.wanted {
		delete(c.entries, key) // the object has changed since, or is gone
		c.open--
		return nil, nil
	}
	e.wanted = false
	question := e.question
	if p := c.pauses[webhookOf(&question)]; p != nil && c.cfg.Clock.Now().Before(p.until) {
		now := *p
		paused = &now
	}
	return &question, paused
}

// record stores the outcome of an attempt. It returns the questions that can be taken now.
func (c *Cache) record(key string, a interpret.Answer, err error) (again []interpret.Question) {
	data, _ := json.Marshal(a) // for its size only
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil {
		return nil
	}
	if e.err = err; err != nil {
		return nil
	}
	e.answer, e.size, e.question = a, len(data)+len(key), interpret.Question{}
	e.answered = c.used.PushFront(key)
	c.bytes += e.size
	c.open--
	for c.bytes > maxAnswerBytes && c.used.Len() > 1 {
		oldest, _ := c.used.Remove(c.used.Back()).(string)
		c.bytes -= c.entries[oldest].size
		delete(c.entries, oldest)
	}
	if c.open < maxOpen/2 {
		for key, q := range c.deferred {
			again = append(again, q)
			delete(c.deferred, key)
		}
	}
	return again
}

// webhookOf identifies the webhook of a question. A changed ResourceInterpretation may name another.
func webhookOf(q *interpret.Question) string {
	return q.Interpretation + "/" + string(q.UID)
}

// recordPause leaves a webhook alone that does not respond, and returns the pause; nil if it does. When it responds
// again, everything that waits for it is asked.
func (c *Cache) recordPause(q *interpret.Question, err error) *pause {
	webhook := webhookOf(q)
	var refused *interpret.RefusedError
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pauses[webhook]
	if err == nil || errors.As(err, &refused) {
		if p != nil {
			c.endPause(q, webhook)
		}
		return nil
	}
	if p == nil {
		p = &pause{}
		c.pauses[webhook] = p
		c.cfg.Log.Warn("webhook of a ResourceInterpretation does not respond", "name", q.Interpretation, "host", interpret.WebhookHost(q.Webhook), "operation", q.Operation, "error", err)
	}
	if now := c.cfg.Clock.Now(); !now.Before(p.until) { // concurrent requests fail together, and count as one failure
		p.until = now.Add(min(minBackoff<<min(p.failures, 10), c.cfg.MaxPause))
		p.failures++
		p.err = err
	}
	now := *p
	return &now
}

// endPause asks everything that waits for a webhook. The caller holds mu.
func (c *Cache) endPause(q *interpret.Question, webhook string) {
	delete(c.pauses, webhook)
	c.cfg.Log.Info("webhook of a ResourceInterpretation responds again", "name", q.Interpretation)
	for key, e := range c.entries {
		if e.answered == nil && webhookOf(&e.question) == webhook {
			c.queue.Add(key)
		}
	}
}
