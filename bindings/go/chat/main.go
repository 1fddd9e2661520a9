// chat reads a message from each line: chat MODEL [WORKER]. WORKER: the program that runs files without a plan.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"satchel"
)

func main() {
	options, messages := satchel.ModelOptions{}, []satchel.Message{}
	if len(os.Args) > 2 {
		options = satchel.ModelOptions{Engine: satchel.Either, Worker: os.Args[2]}
	}
	model, err := satchel.Open(os.Args[1], options)
	for lines := bufio.NewScanner(os.Stdin); err == nil && lines.Scan(); fmt.Println() {
		messages = append(messages, satchel.Message{Role: "user", Content: lines.Text()})
		var reply *satchel.Reply
		if reply, err = model.Chat(messages, satchel.Options{MaxTokens: 64, Seed: -1}); err == nil {
			answer, failed := reply.Print(os.Stdout)
			messages, err = append(messages, satchel.Message{Role: "assistant", Content: answer}), failed
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}
