// Package satchel runs a model file that `satchel build` made, by the C library libsatchel.
//
// Every function may be called from any goroutine. Closing a model ends its replies first.
package satchel

/*
#cgo pkg-config: satchel
#include <stdlib.h>
#include <string.h>
#include "satchel.h"

// The library keeps the text of an error for each thread, and a goroutine may change its thread between two calls: so the calls that
// can fail are made here, and leave a copy of the text.
static char *reason(int64_t code) {
	return code < 0 ? strdup(satchel_error()) : NULL;
}
static int32_t open_model(const char *path, int32_t context, int32_t slots, int32_t threads, int32_t engine, const char *worker,
                          satchel_model **model, char **error) {
	satchel_model_options options;
	satchel_model_options_init(&options, sizeof options);
	options.context = context;
	options.slots = slots;
	options.threads = threads;
	options.engine = engine;
	options.worker = *worker ? worker : NULL;
	int32_t code = satchel_open(path, &options, model);
	*error = reason(code);
	return code;
}
static int32_t begin_chat(satchel_model *model, const char *request, int64_t length, const satchel_generate_options *options,
                          satchel_reply **reply) {
	satchel_chat_prompt *prompt = NULL;
	int64_t count;
	int32_t code = satchel_chat_render(model, request, length, &prompt);
	if (code >= 0) {
		const int32_t *ids = satchel_chat_prompt_ids(prompt, &count);
		code = satchel_generate(model, ids, count, options, reply);
	}
	satchel_chat_prompt_free(prompt);
	return code;
}
// An answer to a text, or to a conversation as JSON.
static int32_t begin(satchel_model *model, const char *text, int64_t length, int chat, float temperature, int64_t max_tokens,
                     int64_t seed, satchel_reply **reply, char **error) {
	satchel_generate_options options;
	satchel_generate_options_init(&options, sizeof options);
	options.temperature = temperature;
	options.max_tokens = max_tokens;
	options.seed = seed;
	int32_t code = chat ? begin_chat(model, text, length, &options, reply)
	                    : satchel_generate_text(model, text, length, 0, &options, reply);
	*error = reason(code);
	return code;
}
static int32_t next(satchel_reply *reply, const char **text, int64_t *length, char **error) {
	satchel_piece piece = {.size = sizeof piece};
	int32_t code = satchel_reply_next(reply, &piece);
	*error = reason(code);
	*text = piece.text;
	*length = piece.length;
	return code;
}
*/
import "C"

import (
	"encoding/json"
	"io"
	"strings"
	"sync"
	"unsafe"
)

// Error is a call that failed: a code SATCHEL_E_... of satchel.h, and the library's words.
type Error struct {
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

func failed(code C.int32_t, text *C.char) error {
	if code >= 0 {
		return nil
	}
	defer C.free(unsafe.Pointer(text))
	return &Error{int(code), C.GoString(text)}
}

// Engine is what computes.
type Engine int

// The library, a worker process, or that for files without a plan.
const (
	Library Engine = iota
	Worker
	Either
)

// ModelOptions are options of a model; 0 and "": as the file or the machine says.
type ModelOptions struct {
	Context int // tokens of a prompt and its answer
	Slots   int // replies at a time
	Threads int
	Engine  Engine
	Worker  string // the worker's program, a path or a name in PATH
}

// Message is a part of a conversation. Its role is system, user or assistant.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Options of an answer.
type Options struct {
	Temperature float32 // 0: the likeliest token
	MaxTokens   int64   // most tokens of the answer; -1: up to the context's end
	Seed        int64   // of the random numbers; -1: drawn
}

// Model is an open model.
type Model struct {
	handle  *C.satchel_model
	lock    sync.Mutex // of what follows
	replies map[*Reply]bool
}

// Open opens a model.
func Open(path string, options ModelOptions) (*Model, error) {
	name, worker := C.CString(path), C.CString(options.Worker)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(worker))
	model := &Model{replies: map[*Reply]bool{}}
	var text *C.char
	code := C.open_model(name, C.int32_t(options.Context), C.int32_t(options.Slots), C.int32_t(options.Threads),
		C.int32_t(options.Engine), worker, &model.handle, &text)
	if err := failed(code, text); err != nil {
		return nil, err
	}
	return model, nil
}

// Close ends the model's replies and frees it.
func (m *Model) Close() {
	m.lock.Lock()
	open := m.replies
	m.replies = map[*Reply]bool{}
	m.lock.Unlock()
	for reply := range open {
		reply.free()
	}
	C.satchel_close(m.handle)
	m.handle = nil
}

// Generate begins an answer to a text.
func (m *Model) Generate(text string, options Options) (*Reply, error) {
	return m.begin(text, 0, options)
}

// Chat begins the answer to a conversation.
func (m *Model) Chat(messages []Message, options Options) (*Reply, error) {
	request, err := json.Marshal(map[string][]Message{"messages": messages})
	if err != nil {
		return nil, err
	}
	return m.begin(string(request), 1, options)
}

func (m *Model) begin(text string, chat C.int, options Options) (*Reply, error) {
	raw := C.CString(text)
	defer C.free(unsafe.Pointer(raw))
	reply := &Reply{model: m}
	var reason *C.char
	code := C.begin(m.handle, raw, C.int64_t(len(text)), chat, C.float(options.Temperature), C.int64_t(options.MaxTokens),
		C.int64_t(options.Seed), &reply.handle, &reason)
	if err := failed(code, reason); err != nil {
		return nil, err
	}
	m.lock.Lock()
	m.replies[reply] = true
	m.lock.Unlock()
	return reply, nil
}

// Reply is an answer under way, read as a bufio.Scanner is: Next until it says no, then Err.
type Reply struct {
	model  *Model
	lock   sync.Mutex // of what follows
	handle *C.satchel_reply
	text   string
	err    error
}

// Next computes the next token. It is false where the answer is over or failed.
func (r *Reply) Next() bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.handle == nil || r.err != nil {
		return false
	}
	var text, reason *C.char
	var length C.int64_t
	code := C.next(r.handle, &text, &length, &reason)
	r.err = failed(code, reason)
	if code > 0 {
		r.text = C.GoStringN(text, C.int(length))
	}
	return code > 0
}

// Text is the text of the last token, in whole characters.
func (r *Reply) Text() string { return r.text }

// Err is the error that ended the answer, or nil.
func (r *Reply) Err() error { return r.err }

// Print writes the rest of the answer as it is computed, closes the reply, and gives the text.
func (r *Reply) Print(to io.Writer) (string, error) {
	defer r.Close()
	var all strings.Builder
	for r.Next() {
		all.WriteString(r.Text())
		if _, err := io.WriteString(to, r.Text()); err != nil {
			return all.String(), err
		}
	}
	return all.String(), r.Err()
}

// Close ends the answer and frees its slot.
func (r *Reply) Close() {
	r.model.lock.Lock()
	delete(r.model.replies, r)
	r.model.lock.Unlock()
	r.free()
}

func (r *Reply) free() {
	r.lock.Lock()
	C.satchel_reply_free(r.handle)
	r.handle = nil
	r.lock.Unlock()
}
